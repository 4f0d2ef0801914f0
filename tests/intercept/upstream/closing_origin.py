# A TLS origin that closes each connection after its second request, without a response.
import socket, ssl, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])

def serve(plain):
    with tls.wrap_socket(plain, server_side=True) as stream:
        stream.recv(65536)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        stream.recv(65536)

listener = socket.create_server(("10.81.0.1", 9001))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
