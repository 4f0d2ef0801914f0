# Starts the program with activated sockets (sd_listen_fds(3)) each time the next file START-N appears.
import fcntl, os, socket, sys, time
sockets, start, program = sys.argv[1].split(), sys.argv[2], sys.argv[3:]
high = []
for port, kind in (s.split('/') for s in sockets):
    s = socket.socket(type=socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sockets.count(f'{port}/{kind}') > 1: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('10.81.0.1', int(port)))
    if kind == 'tcp': s.listen(128)
    high.append(fcntl.fcntl(s, fcntl.F_DUPFD, 100))
    s.close()
print('open', flush=True)
for turn in range(9):
    while not os.path.exists(f'{start}-{turn}'): time.sleep(0.005)
    os.remove(f'{start}-{turn}')
    pid = os.fork()
    if pid == 0:
        for number, fd in enumerate(high): os.dup2(fd, 3 + number)
        os.closerange(3 + len(high), 200)
        os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)),
                          LISTEN_FDNAMES='first:second')
        os.execv(program[0], program)
    print('pid', turn, pid, flush=True)
    print('ended', turn, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
