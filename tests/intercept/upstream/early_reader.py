# An origin at 9001, with TLS and without HTTP/2, that answers after the head of each request, and reads on.
import socket, ssl, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])

def serve(stream):
    try:
        # Otherwise Nagle's algorithm may hold the response back for ever, behind the session tickets of TLS.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = tls.wrap_socket(stream, server_side=True)
        head = b""
        while b"\r\n\r\n" not in head:
            head += stream.recv(4096)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")
        while stream.recv(4096):
            pass
    except OSError:
        pass

listener = socket.create_server(("10.81.0.1", 9001), backlog=256)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
