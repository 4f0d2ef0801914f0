"""Listens at port 8080, and at port 8000 once a client has connected to port 8080. Answers one request at each port."""
import socket


def answer(client):
    client.recv(65536)
    client.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
    client.close()


first = socket.create_server(("10.81.0.1", 8080))
client, _ = first.accept()
second = socket.create_server(("10.81.0.1", 8000))
answer(client)
client, _ = second.accept()
answer(client)
