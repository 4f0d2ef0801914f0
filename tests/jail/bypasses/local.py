# The canary on the host of the jail: prints each contact by its sockets and each signal.
import ctypes, os, signal, socket, sys, threading, time

libc = ctypes.CDLL(None)
path = sys.argv[1]
# A process group of its own, so that a signal to the group reaches no other process.
os.setpgid(0, 0)
# SIGURG is ignored by processes without a handler. It is blocked in every thread, so that sigwait(3) below receives it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})

def serve(server, name):
    while True:
        connection, _ = server.accept()
        print(name, flush=True)
        try:
            connection.sendall(b"hello")
        except ConnectionError:
            pass  # A connection that was closed at once is a contact, too.
        connection.close()

def unix(address, kind=socket.SOCK_STREAM):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(address)
    if address[0] != "\0":
        os.chmod(address, 0o777)
    if kind != socket.SOCK_DGRAM:
        server.listen()
    return server

def linked():
    server = unix(path + ".first")
    os.link(path + ".first", path + ".linked")
    os.unlink(path + ".first")
    return server

def renamed():
    server = unix(path + ".second")
    os.rename(path + ".second", path + ".renamed")
    return server

def later():
    while True:
        server = unix(path + ".third")
        os.rename(path + ".third", path + ".later")
        server.settimeout(0.3)
        try:
            serve(server, "later")
        except OSError:
            pass

def datagrams():
    server = unix(path + ".datagrams", socket.SOCK_DGRAM)
    while True:
        server.recv(100)
        print("datagram", flush=True)

# Connects to the servers that an attempt may have started, and sends to the multicast group that it may have joined.
def visit():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.81.0.2"))
    while True:
        time.sleep(0.3)
        sender.sendto(b"x", ("224.0.0.251", 7009))
        try:
            socket.create_connection(("10.81.0.2", 7002), 0.2).close()
        except OSError:
            pass

libc.shmget(0x70000000 + os.getpid(), 4096, 0o1600)
queue = b"/peername-canary-%d" % os.getpid()
ctypes.CDLL("librt.so.1").mq_open(queue, 0o102, 0o600, None)
servers = [
    (unix(path), "path"), (unix("\0peername-canary"), "abstract"), (linked(), "linked"), (renamed(), "renamed"),
    (unix(path + ".packets", socket.SOCK_SEQPACKET), "packets"), (socket.create_server(("127.0.0.1", 7001)), "loopback"),
]
for server, name in servers:
    threading.Thread(target=serve, args=(server, name)).start()
threading.Thread(target=later).start()
threading.Thread(target=datagrams).start()
threading.Thread(target=visit).start()
time.sleep(0.2)
print("ready", flush=True)
while True:
    print("signal", signal.sigwait({signal.SIGURG}), flush=True)
