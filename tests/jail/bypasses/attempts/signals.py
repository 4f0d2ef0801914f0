# Attempts to signal, stop or type at processes outside. The canary waits for SIGURG, which is ignored elsewhere.

# %% a signal by a process descriptor [noticed]
require_signal_scope()
signal.pidfd_send_signal(os.pidfd_open(VICTIM), signal.SIGURG)
print("OUT")

# %% a signal to a thread outside (tgkill, tkill) [noticed]
require_signal_scope()
tgkill, tkill = {"x86_64": (234, 200)}.get(os.uname().machine, (131, 130))
sent = [libc.syscall(tgkill, VICTIM, VICTIM, signal.SIGURG), libc.syscall(tkill, VICTIM, signal.SIGURG)]
print("OUT" if 0 in sent else "closed", sent)

# %% a queued signal with data (rt_sigqueueinfo) [noticed]
require_signal_scope()
process, thread = {"x86_64": (129, 297)}.get(os.uname().machine, (138, 240))
info = ctypes.create_string_buffer(struct.pack("iii4xiI", signal.SIGURG, 0, -1, os.getpid(), os.getuid()), 128)
sent = [libc.syscall(process, VICTIM, signal.SIGURG, info), libc.syscall(thread, VICTIM, VICTIM, signal.SIGURG, info)]
print("OUT" if 0 in sent else "closed", sent)

# %% a signal to the process group of a process outside [noticed]
require_signal_scope()
os.killpg(os.getpgid(VICTIM), signal.SIGURG)
print("OUT")

# %% a signal to every process (kill -1) [not-tried]
require_signal_scope()
try:
    os.kill(-1, signal.SIGURG)
except OSError as error:
    report(error)
print("closed: the canary says whether it is outside")

# %% a signal when a socket has data (F_SETOWN, SIGIO) [noticed]
require_signal_scope()
one, other = socket.socketpair()
fcntl.fcntl(one, fcntl.F_SETOWN, VICTIM)
fcntl.fcntl(one, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(one, fcntl.F_SETFL, os.O_ASYNC)
other.send(b"x")
time.sleep(0.2)
print(outcome())

# %% a signal when a socket has data, to a process group that one has joined [noticed]
require_signal_scope()
in_group_of_victim(lambda one, group: fcntl.fcntl(one, fcntl.F_SETOWN, -group))

# %% such a signal to a process group by F_SETOWN_EX [noticed]
require_signal_scope()
in_group_of_victim(lambda one, group: fcntl.fcntl(one, 15, struct.pack("ii", 2, group)))

# %% such a signal to a process group by FIOSETOWN and SIOCSPGRP [noticed]
require_signal_scope()
in_group_of_victim(lambda one, group: [fcntl.ioctl(one, command, struct.pack("i", -group)) for command in (0x8901, 0x8902)])

# %% a signal for urgent data (SIGURG) [noticed]
require_signal_scope()
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
fcntl.fcntl(accepted, fcntl.F_SETOWN, VICTIM)
client.send(b"x", socket.MSG_OOB)
time.sleep(0.2)
print(outcome())

# %% a signal when a directory changes (F_NOTIFY) [noticed]
require_signal_scope()
with tempfile.TemporaryDirectory() as dir:
    directory = os.open(dir, os.O_RDONLY)
    fcntl.fcntl(directory, fcntl.F_NOTIFY, 4)
    fcntl.fcntl(directory, fcntl.F_SETOWN, VICTIM)
    fcntl.fcntl(directory, fcntl.F_SETSIG, signal.SIGURG)
    open(dir + "/file", "w").close()
    time.sleep(0.2)
print(outcome())

# %% a signal when a lease is broken (F_SETLEASE) [noticed]
require_signal_scope()
with tempfile.TemporaryDirectory() as dir:
    open(dir + "/file", "w").close()
    leased = os.open(dir + "/file", os.O_RDONLY)
    fcntl.fcntl(leased, fcntl.F_SETSIG, signal.SIGURG)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    fcntl.fcntl(leased, fcntl.F_SETOWN, VICTIM)
    try:
        os.open(dir + "/file", os.O_WRONLY | os.O_NONBLOCK)
    except BlockingIOError:
        pass
    time.sleep(0.2)
print(outcome())

# %% a signal of a timer to a thread outside [not-tried]
create = {"x86_64": 222}.get(os.uname().machine, 107)
event = ctypes.create_string_buffer(struct.pack("qiii", 0, signal.SIGURG, 4, VICTIM), 64)
call(libc.syscall(create, 1, event, ctypes.byref(ctypes.c_int())))
print("OUT")

# %% a child of the parent outside (CLONE_PARENT) [succeeds]
number = {"x86_64": 56}.get(os.uname().machine, 220)
child = libc.syscall(number, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
call(child)
print("OUT")

# %% a child in a control group outside (clone3) [not-tried]
import glob
for path in glob.glob("/sys/fs/cgroup") + glob.glob("/sys/fs/cgroup/*/")[:20]:
    group = os.open(path, os.O_RDONLY)
    arguments = ctypes.create_string_buffer(struct.pack("11Q", 0x200000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group))
    child = libc.syscall(435, arguments, 88)
    if child == 0:
        os._exit(0)
    print("OUT" if child > 0 else "closed", ctypes.get_errno())
    os.close(group)

# %% another session's terminal as one's own (TIOCSCTTY) [succeeds]
import pty
master, slave = pty.openpty()
owned, ready = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.write(ready, b"x")
    time.sleep(1)
    os._exit(0)
os.read(owned, 1)
if os.fork() == 0:
    os.setsid()
    try:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 1)
        print("OUT", flush=True)
    except OSError as error:
        print("closed", error, flush=True)
    os._exit(0)
os.wait()

# %% typing with a command of more than 32 bits [not-tried]
import pty
master, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
number = {"x86_64": 16}.get(os.uname().machine, 29)
call(libc.syscall(number, slave, ctypes.c_long(0x7_0000_5412), b"x"))
print("OUT")

# %% the console, the selection and the line discipline of a terminal [not-tried]
import pty
master, slave = pty.openpty()
os.setsid()
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
# TIOCCONS, TIOCLINUX, TIOCVHANGUP, and N_SLIP and N_GSM0710 by TIOCSETD.
for command, argument in ((0x541d, b""), (0x541c, b"\2"), (0x5437, b""), (0x5423, struct.pack("i", 1)), (0x5423, struct.pack("i", 21))):
    try:
        fcntl.ioctl(slave, command, argument)
        print("OUT", hex(command), argument)
    except OSError as error:
        print("closed", hex(command), error)

# %% a hangup of the terminal (vhangup) [succeeds]
os.setsid()
call(libc.vhangup())
print("OUT")
