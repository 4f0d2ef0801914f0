"""Keeps connections to an allowed host open, and sends requests to a denied one."""
import socket

idle = []
for _ in range(320):
    idle.append(socket.create_connection(("a.test", 80)))
for _ in range(3):
    with socket.create_connection(("b.test", 80), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n")
        print(client.recv(100).split()[1].decode(), flush=True)
