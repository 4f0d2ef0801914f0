"""Runs a command in a terminal of its own, and prints what it printed, then `exit CODE`.

Usage: expect.py STEP… -- COMMAND…

The steps run one after the other: `see:REGEX` waits for a match in the output after the previous match, `type:KEYS` types. A
step that waits in vain ends the command.
"""

import os
import pty
import re
import select
import sys
import time

LIMIT = 20  # seconds


def main(arguments):
    border = arguments.index("--")
    steps, command = arguments[:border], arguments[border + 1 :]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "dumb"
        os.execvp(command[0], command)
    everything = text = ""

    def read():
        nonlocal everything, text
        if not select.select([terminal], [], [], 0.1)[0]:
            return True
        try:
            new = os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            return False
        everything, text = everything + new, text + new
        return True

    missing = None
    for step in steps:
        kind, what = step.split(":", 1)
        if kind == "type":
            os.write(terminal, what.encode().decode("unicode_escape").encode("latin-1"))
            continue
        end = time.monotonic() + LIMIT
        while not (match := re.search(what, text)) and time.monotonic() < end and read():
            pass
        if not match:
            missing = what
            os.kill(child, 9)
            break
        text = text[match.end() :]
    end = time.monotonic() + LIMIT
    while time.monotonic() < end and read():
        pass
    print(everything)
    if missing is not None:
        print("waited in vain for", missing)
    if time.monotonic() >= end:
        os.kill(child, 9)
    print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


main(sys.argv[1:])
