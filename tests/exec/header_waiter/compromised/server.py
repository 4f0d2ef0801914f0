# The parent serves its clients. The child is compromised: it runs the script that is appended to this file.
import array, ctypes, fcntl, os, platform, socket, struct, time
listener = socket.create_server(("10.81.0.1", 8443), backlog=64)
libc = ctypes.CDLL(None, use_errno=True)

def channel():
    number = {"x86_64": 52, "aarch64": 205}[platform.machine()]
    marks = [ctypes.c_uint64(int.from_bytes(text, "big")) for text in (b"peername", b"channel?")]
    fd = libc.syscall(ctypes.c_long(number), ctypes.c_long(-1), None, None, None, *marks)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=fd)

def request(bytes, *passed):
    socket_ = channel()
    rights = array.array("i", [passed_socket.fileno() for passed_socket in passed])
    socket_.sendmsg([bytes], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    return socket_

def listen_elsewhere(address):
    CLONE_NEWUSER, CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x10000000, 0x40000000, 0x8914, 1
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    elsewhere = socket.socket()
    fcntl.ioctl(elsewhere, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))
    elsewhere.bind(address)
    elsewhere.listen()
    return elsewhere

HEADER = b"PROXY TCP4 203.0.113.7 198.51.100.10 56324 443\r\n"

def park(listener, claimed):
    """Parks a connection of `listener`, with half a header, for the listener `claimed`. Returns the client's socket."""
    client = socket.create_connection(listener.getsockname())
    client.sendall(b"PROXY UNKNOWN\r\n")
    connection, _ = listener.accept()
    client.sendall(HEADER[:20])
    time.sleep(0.1)
    request(b"P", connection, claimed)
    connection.close()
    return client

def listen_with_ready_connection():
    """Returns a listener with a ready connection, whose header was completed after accept(2), and the client's socket, which
    has to stay open."""
    own = socket.create_server(("127.0.0.1", 9000))
    own.setblocking(False)
    client = socket.create_connection(own.getsockname())
    client.sendall(HEADER[:20])
    time.sleep(0.1)
    try:
        own.accept()
    except BlockingIOError:
        pass
    client.sendall(HEADER[20:])
    time.sleep(0.5)
    return own, client

if os.fork() != 0:
    while True:
        connection, (ip, port) = listener.accept()
        connection.sendall(f"{ip}:{port}".encode())
        connection.close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
