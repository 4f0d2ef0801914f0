# Executes the program in its arguments with an activated TCP and an activated UDP socket.
import fcntl, os, socket, sys
high = []
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    s = socket.socket(type=kind)
    s.bind(('10.81.0.1', 8443))
    if kind == socket.SOCK_STREAM: s.listen(128)
    high.append(fcntl.fcntl(s, fcntl.F_DUPFD, 100))
    s.close()
for number, fd in enumerate(high): os.dup2(fd, 3 + number)
os.closerange(5, 200)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='2')
os.execv(sys.argv[1], sys.argv[1:])
