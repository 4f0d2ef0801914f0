"""Replaces a file by one that no other process can read while this one runs: a write lease (fcntl(2)) makes open(2) with
O_NONBLOCK fail with EAGAIN. The end of the lease does not change the file or its times.

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
