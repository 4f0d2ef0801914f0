# Switches protocols whatever is requested, with the Sec-WebSocket-Accept of the example in RFC 6455.
import socket, ssl, sys
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("10.81.0.1", 9001))
while True:
    connection = tls.wrap_socket(listener.accept()[0], server_side=True)
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
    connection.recv(4096)
    connection.close()
