# A name server that answers each query with NXDOMAIN.
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
print("ready")
while True:
    question, client = server.recvfrom(512)
    end = question.index(b"\0", 12) + 5
    server.sendto(question[:2] + b"\x81\x83\0\1\0\0\0\0\0\0" + question[12:end], client)
