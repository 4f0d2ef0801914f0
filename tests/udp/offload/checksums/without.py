"""A balancer that sends twenty datagrams without a checksum, and awaits the reply to each."""
import socket, sys
SO_NO_CHECK = 11
host, port = sys.argv[1].split(":")
balancer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
balancer.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
balancer.settimeout(10)
balancer.connect((host, int(port)))
for _ in range(20):
    balancer.send(bytes.fromhex(sys.argv[2]) + b"ping")
    assert balancer.recv(100) == b"pong"
print("answered")
