# Origins that answer after the head of the request, with the status in its path; TLS at 9001, plain at 9002.
import socket, ssl, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])

def serve(stream, wrap):
    try:
        # Otherwise Nagle's algorithm may hold the response back for ever, behind the session tickets of TLS.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = wrap(stream)
        head = b""
        while b"\r\n\r\n" not in head:
            head += stream.recv(4096)
        status = head.split()[1][1:]
        stream.sendall(b"HTTP/1.1 " + status + b" Early\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly")
        stream.close()
    except OSError:
        pass

def listen(port, wrap):
    listener = socket.create_server(("10.81.0.1", port), backlog=64)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0], wrap), daemon=True).start()

threading.Thread(target=listen, args=(9002, lambda stream: stream), daemon=True).start()
listen(9001, lambda stream: tls.wrap_socket(stream, server_side=True))
