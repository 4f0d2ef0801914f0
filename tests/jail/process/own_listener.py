"""Asks the kernel for a seccomp listener once the jail's mediator is gone, and writes the answer to a file."""

import ctypes
import errno
import os
import platform
import socket
import struct
import sys
import time

SECCOMP = {"x86_64": 317, "aarch64": 277}[platform.machine()]
SECCOMP_SET_MODE_FILTER = 1
SECCOMP_FILTER_FLAG_NEW_LISTENER = 8
PR_SET_NO_NEW_PRIVS = 38
ALLOW = struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)

libc = ctypes.CDLL(None, use_errno=True)


def is_mediated():
    """Whether connect(2) is answered: without a mediator the kernel returns ENOSYS."""
    try:
        socket.socket(socket.AF_UNIX).connect("/nonexistent")
    except OSError as error:
        return error.errno != errno.ENOSYS


def answer():
    program = ctypes.create_string_buffer(ALLOW)
    programs = struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    listener = libc.syscall(SECCOMP, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, programs)
    return "a listener" if listener >= 0 else errno.errorcode[ctypes.get_errno()]


if os.fork():
    os._exit(0)
os.setsid()
libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
while is_mediated():
    time.sleep(0.01)
with open(sys.argv[1], "w") as file:
    print(answer(), file=file)
