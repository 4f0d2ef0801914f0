# Follows server.py: sends sockets whose close waits for a reader that does not read.
import signal
reader = socket.create_server(("127.0.0.1", 7999))
reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
unread = []

def lingering():
    writer = socket.socket()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    writer.connect(reader.getsockname())
    writer.setblocking(False)
    try:
        while True:
            writer.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    writer.setblocking(True)
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return writer

def count(number):
    return 16 if number % 2 else 1

def send(number):
    writers = [lingering() for _ in range(count(number))]
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    if number % 2:
        first, last = writers[0].fileno(), writers[-1].fileno()
        request(b"P", *writers, listener)
        os.closerange(first, last + 1)
    else:
        rights = array.array("i", [writers[0].fileno()])
        asking = request(b"L")
        try:
            asking.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except BrokenPipeError:
            pass
    os._exit(0)

for number in range(200):
    if os.fork() == 0:
        send(number)
    unread += [reader.accept()[0] for _ in range(count(number))]
    os.wait()
    if number == 9:
        print("begun")
time.sleep(60)
