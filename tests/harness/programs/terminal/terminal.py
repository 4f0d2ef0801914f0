"""Runs a command in a terminal, and prints its exit status and the last screen as JSON.

Usage: terminal.py STEP… -- COMMAND…

The steps, one after the other: `see:TEXT` waits until the screen has the text, `press:KEYS` types.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time

LIMIT = 20  # seconds
ROWS, COLUMNS = 30, 150
# A control sequence, or a character.
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b.|.", re.DOTALL)


def screen(received):
    """Returns the text on the screen. Of control sequences only those few count that move the cursor or clear."""
    cells = [[" "] * COLUMNS for _ in range(ROWS)]
    row = column = 0
    for token in TOKEN.finditer(received.decode(errors="replace")):
        numbers, final = token.groups()
        if final == "H":
            row, column = (int(number or 1) - 1 for number in (numbers or "1;1").split(";"))
        elif final == "J":
            cells = [[" "] * COLUMNS for _ in range(ROWS)]
        elif final is None and token[0].isprintable():
            if row < ROWS and column < COLUMNS:
                cells[row][column] = token[0]
            column += 1
    return "\n".join("".join(line).rstrip() for line in cells)


def read(terminal, seconds):
    if select.select([terminal], [], [], seconds)[0]:
        try:
            return os.read(terminal, 1 << 16)
        except OSError:
            pass
    return b""


def main(arguments):
    border = arguments.index("--")
    steps, command = arguments[:border], arguments[border + 1 :]
    child, terminal = pty.fork()
    if child == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ["TERM"] = "xterm"
        os.execv(command[0], command)
    received, missing = b"", None
    for step in steps:
        kind, text = step.split(":", 1)
        if kind == "press":
            os.write(terminal, text.encode().decode("unicode_escape").encode())
            continue
        end = time.monotonic() + LIMIT
        while text not in screen(received) and time.monotonic() < end:
            received += read(terminal, 0.1)
        if text not in screen(received):
            missing = text
            break
    last = screen(received)
    status = None
    end = time.monotonic() + (LIMIT if missing is None else 0)
    while status is None and time.monotonic() < end:
        read(terminal, 0.05)
        ended, wait_status = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(wait_status) if ended else None
    if status is None:
        os.kill(child, 9)
    is_restored = bool(termios.tcgetattr(terminal)[3] & termios.ECHO)
    result = {"missing": missing, "status": status, "is_restored": is_restored, "screen": last}
    print(json.dumps(result))


main(sys.argv[1:])
