# Accepts connections once their first bytes have come, and tells each client its address.
import socket

listener = socket.create_server(("10.81.0.1", 8443))
listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 30)
while True:
    connection, (ip, port) = listener.accept()
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
