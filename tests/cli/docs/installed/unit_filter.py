"""unit_filter.py UNIT COMMAND …: executes the command under the SystemCallFilter= of the unit, as systemd installs it (systemd.exec(5)).

The first value is a list of allowed calls. Each call that is not in the result fails with EPERM.
"""
import ctypes
import os
import re
import struct
import subprocess
import sys

ALLOW, EPERM = 0x7FFF0000, 0x00050001


def groups():
    """The calls and groups of each group that systemd knows."""
    members, name = {}, None
    for line in subprocess.check_output(["systemd-analyze", "syscall-filter"], text=True).splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("@"):
            name = word
            members[name] = []
        elif name and word:
            members[name].append(word)
    return members


def expand(word, members):
    if not word.startswith("@"):
        return {word}
    return set().union(*(expand(member, members) for member in members[word]))


def allowed_calls(unit):
    members = groups()
    # systemd permits these without being told.
    allowed = expand("@default", members)
    for value in re.findall(r"^SystemCallFilter=(.*)$", unit, re.MULTILINE):
        calls = set().union(*(expand(word, members) for word in value.lstrip("~").split()))
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def numbers():
    """The numbers of this machine's system calls, from the headers of its C compiler."""
    command = ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]
    defined = dict(re.findall(r"#define (__NR\w+) (\w+)", subprocess.check_output(command, text=True)))
    for name, value in defined.items():
        if name.startswith("__NR_"):
            value = defined.get(value, value)
            if value.isdigit():
                yield name.removeprefix("__NR_"), int(value)


allowed = allowed_calls(open(sys.argv[1]).read())
filter = [(0x20, 0, 0, 0)]
for name, number in numbers():
    if name not in allowed:
        filter += [(0x15, 0, 1, number), (0x06, 0, 0, EPERM)]
filter.append((0x06, 0, 0, ALLOW))
instructions = b"".join(struct.pack("HBBI", *instruction) for instruction in filter)
program = struct.pack("HxxxxxxP", len(filter), ctypes.cast(instructions, ctypes.c_void_p).value)
if ctypes.CDLL(None).prctl(22, 2, program, 0, 0):
    sys.exit("no filter")
os.execvp(sys.argv[2], sys.argv[2:])
