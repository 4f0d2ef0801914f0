# Precedes each script of this folder.
import array, ctypes, errno, fcntl, os, signal, socket, struct, sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
directory = tempfile.mkdtemp()
os.chmod(directory, 0o777)

servers = []

def listen(path, kind=socket.SOCK_STREAM, backlog=10):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(path)
    server.listen(backlog)
    servers.append(server)
    return server

def connect(path, kind=socket.SOCK_STREAM):
    client = socket.socket(socket.AF_UNIX, kind)
    client.connect(path)
    return client

def error(call):
    try:
        call()
        return None
    except OSError as error:
        return errno.errorcode[error.errno]

def peer(become, path=None):
    if not path:
        path = directory + "/peer-%d" % time.monotonic_ns()
    server = listen(path)
    if path[0] != "\0":
        os.chmod(path, 0o777)
    if os.fork() == 0:
        become()
        connect(path)
        os._exit(0)
    accepted, _ = server.accept()
    _, user, group = struct.unpack("3i", accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    os.wait()
    return user, group
