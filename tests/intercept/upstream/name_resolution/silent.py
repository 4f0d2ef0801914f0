# A name server that prints queries and answers none.
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
while True:
    server.recvfrom(512)
    print("asked")
