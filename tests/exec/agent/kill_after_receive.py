"""Kills a supervisor that has received a call from the kernel and not read it yet, at the exit of the ioctl(2) that receives
it. usage: kill_after_receive.py PID COUNT, where 1 is the next call."""
import ctypes
import os
import signal
import sys

SEIZE, INTERRUPT, SYSCALL, GET_SYSCALL_INFO = 0x4206, 0x4207, 24, 0x420E
TRACESYSGOOD, INFO_ENTRY, INFO_EXIT = 1, 1, 2
IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
SECCOMP_IOCTL_NOTIF_RECV = 0xC0502100

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, address=None, data=None):
    if libc.ptrace(request, supervisor, address, data) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def syscall_info():
    """Operation and words of PTRACE_GET_SYSCALL_INFO (ptrace(2))."""
    info = (ctypes.c_uint64 * 11)()
    ptrace(GET_SYSCALL_INFO, ctypes.sizeof(info), ctypes.addressof(info))
    return info[0] & 0xFF, list(info)[3:]


supervisor, left = map(int, sys.argv[1:])
ptrace(SEIZE, None, TRACESYSGOOD)
ptrace(INTERRUPT)
os.waitpid(supervisor, 0)
print("attached", flush=True)
is_receiving = False
while left:
    ptrace(SYSCALL)
    _, status = os.waitpid(supervisor, 0)
    if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
        continue
    operation, words = syscall_info()
    if operation == INFO_ENTRY:
        is_receiving = words[0] == IOCTL and words[2] == SECCOMP_IOCTL_NOTIF_RECV
    elif operation == INFO_EXIT and is_receiving and words[0] == 0:
        left -= 1
os.kill(supervisor, signal.SIGKILL)
print("killed", flush=True)
