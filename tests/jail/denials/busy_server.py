"""Connects to addresses of other hosts at which a server of the program has a full accept backlog, and then accepts."""
import socket
import threading


def serve(family, address, block):
    server = socket.socket(family)
    server.bind(("", 0))
    server.listen(0)
    server.settimeout(20)
    first, second = socket.socket(family), socket.socket(family)
    at = (address, server.getsockname()[1])
    first.connect(at)
    second.setblocking(block)
    connect = threading.Thread(target=second.connect_ex, args=(at,))
    connect.start()
    # A blocking call waits until the server accepts; meanwhile the mediator tries several times.
    connect.join(0.2 if block else None)
    for _ in (first, second):
        server.accept()
    connect.join()
    print("made", second.getpeername()[0])


serve(socket.AF_INET, "10.1.2.3", True)
serve(socket.AF_INET6, "2001:db8::7", False)
