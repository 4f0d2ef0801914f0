"""A service manager in a few lines. It keeps the descriptors that a service stores (sd_pid_notify_with_fds(3)), and restarts a
killed service with these descriptors. usage: manager.py NOTIFY_SOCKET PROGRAM [ARGUMENT...]"""
import array
import ctypes
import fcntl
import os
import select
import signal
import socket
import sys

path, program = sys.argv[1], sys.argv[2:]
notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
notify.bind(path)
stored = []


def start():
    pid = os.fork()
    if pid:
        print("pid", pid, flush=True)
        return pid
    # PR_SET_PDEATHSIG: the program ends with this process.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    for number, (_, fd) in enumerate(stored):
        os.dup2(fd, 3 + number)
    os.closerange(3 + len(stored), 500)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(stored)),
                      LISTEN_FDNAMES=":".join(name for name, _ in stored), NOTIFY_SOCKET=path, FDSTORE="64")
    os.execv(program[0], program)


def close_hung_up():
    """Closes descriptors that report EPOLLHUP, as systemd does."""
    poll = select.poll()
    for _, fd in stored:
        poll.register(fd, 0)
    ended = {fd for fd, events in poll.poll(0) if events & select.POLLHUP}
    stored[:] = [entry for entry in stored if entry[1] not in ended]
    for fd in ended:
        os.close(fd)


def receive():
    message, control, _, _ = notify.recvmsg(4096, socket.CMSG_LEN(64))
    lines = dict(line.split("=", 1) for line in message.decode().splitlines())
    fds = array.array("i")
    for _, _, data in control:
        fds.frombytes(data)
    if "FDSTORE" in lines:
        # Above the numbers of the copies that the service is started with.
        kept = [(lines["FDNAME"], fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 500)) for fd in fds]
        # The newest first, as systemd passes them.
        stored[:0] = kept
    if "FDSTOREREMOVE" in lines:
        stored[:] = [entry for entry in stored if entry[0] != lines["FDNAME"]]
    print("stored", len(stored), flush=True)
    for fd in fds:
        os.close(fd)


wakeup, woken = socket.socketpair()
woken.setblocking(False)
signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
signal.signal(signal.SIGCHLD, lambda *_: None)
start()
while True:
    ready, _, _ = select.select([notify, wakeup], [], [])
    if notify in ready:
        receive()
    elif wakeup.recv(1):
        while os.waitpid(-1, os.WNOHANG)[0]:
            close_hung_up()
            start()
