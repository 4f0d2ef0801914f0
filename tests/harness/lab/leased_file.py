"""Replaces a file by one that no other process can read while this one runs: open(2) with O_NONBLOCK fails with EAGAIN, because
of a write lease (fcntl(2)). When the lease ends, nothing about the file changes.

usage: leased_file.py FILE CONTENT"""

import fcntl
import os
import signal
import sys

path, content = sys.argv[1:]
new = path + ".leased"
with open(new, "w") as file:
    file.write(content)
leased = os.open(new, os.O_RDONLY)
# Sent when another process opens the file.
signal.signal(signal.SIGIO, signal.SIG_IGN)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.rename(new, path)
print("leased", flush=True)
signal.pause()
