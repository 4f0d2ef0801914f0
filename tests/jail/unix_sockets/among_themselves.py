# Follows prelude.py: sockets of the jailed program work among themselves as outside of a jail.
path = directory + "/absolute"
server = listen(path)
client = connect(path)
accepted, _ = server.accept()
client.sendall(b"hello")
assert accepted.recv(10) == b"hello"
assert server.getsockname() == path and client.getpeername() == path
assert os.stat(path).st_uid == os.getuid()

os.chdir(directory)
server = listen("relative")
connect("relative"), connect("../%s/relative" % os.path.basename(directory)), connect(directory + "/relative")
assert server.getsockname() == "relative"
os.rename("relative", "renamed")
connect("renamed")
os.link("renamed", "linked")
connect("linked")
os.symlink("linked", "symbolic")
connect("symbolic")
assert error(lambda: connect("relative")) == "ENOENT"
assert error(lambda: listen("renamed")) == "EADDRINUSE"
os.umask(0o77)
listen("private")
assert os.stat("private").st_mode & 0o777 == 0o700
open("file", "w")
assert error(lambda: connect("file")) in ("ECONNREFUSED", "EACCES")
os.unlink("linked")
assert error(lambda: connect("missing/x")) == "ENOENT"

file = os.open(directory, os.O_PATH)
server = listen("/proc/self/fd/%d/by-descriptor" % file)
connect(directory + "/by-descriptor"), connect("/proc/self/fd/%d/by-descriptor" % file), connect("/dev/fd/%d/by-descriptor" % file)

server = listen("\0abstract")
connect("\0abstract")
auto = socket.socket(socket.AF_UNIX)
auto.bind("")
assert auto.getsockname()[0] == 0
listen("packets", socket.SOCK_SEQPACKET)
connect("packets", socket.SOCK_SEQPACKET)
assert error(lambda: connect("packets")) == "EPROTOTYPE"
one, other = socket.socketpair()
one.sendall(b"x")
assert other.recv(1) == b"x"
assert error(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) == "ESOCKTNOSUPPORT"

# By another process, in threads, and after its server has closed.
if os.fork() == 0:
    connect("renamed")
    os._exit(0)
assert os.wait()[1] == 0
threads = [threading.Thread(target=lambda: [connect(path) for _ in range(5)]) for _ in range(2)]
server = listen("many", backlog=1000)
path = directory + "/many"
for thread in threads: thread.start()
for thread in threads: thread.join()
server.close()
assert error(lambda: connect("many")) == "ECONNREFUSED"

# From another root directory.
if os.fork() == 0:
    user = os.geteuid()
    assert libc.unshare(0x10000000) == 0
    for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"):
        open("/proc/self/" + name, "w").write(text)
    os.chroot(directory)
    server = listen("/rooted")
    connect("/rooted"), connect("rooted")
    assert server.getsockname() == "/rooted"
    os._exit(0)
assert os.wait()[1] == 0

# TCP and UDP, blocking and not.
server = socket.create_server(("127.0.0.1", 0))
address = server.getsockname()
socket.create_connection(address)
client = socket.socket()
client.setblocking(False)
assert client.connect_ex(address) in (0, errno.EINPROGRESS)
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.connect(("127.0.0.1", 9)), datagrams.connect(("127.0.0.1", 10))
assert libc.connect(datagrams.fileno(), struct.pack("H14x", 0), 16) == 0
blocking = socket.socket()
assert error(lambda: blocking.connect(("127.0.0.1", 1))) == "ECONNREFUSED"
assert fcntl.fcntl(blocking, fcntl.F_GETFL) & os.O_NONBLOCK == 0
blocking = socket.create_connection(address)
assert error(lambda: blocking.connect(address)) == "EISCONN"
assert error(lambda: socket.socket().bind(address)) == "EADDRINUSE"
assert libc.connect(99, b"", 0) == -1 and ctypes.get_errno() == errno.EBADF
assert libc.connect(client.fileno(), ctypes.c_void_p(8), 16) == -1 and ctypes.get_errno() == errno.EFAULT
assert libc.connect(client.fileno(), bytes(200), 200) == -1 and ctypes.get_errno() == errno.EINVAL

# Limits and priorities of its own processes.
os.sched_setaffinity(os.getpid(), os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))
import resource
resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))
print("ok")
