# Answers each datagram with the address that it came from, and its content.
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.socket(family, socket.SOCK_DGRAM)
server.bind((sys.argv[1], int(sys.argv[2])))
print("ready")
while True:
    data, peer = server.recvfrom(65536)
    server.sendto(b"%s %d %s" % (peer[0].encode(), peer[1], data), peer)
