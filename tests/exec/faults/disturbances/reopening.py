"""Closes its listener after each client and opens it again at once; then tells the client its address."""

import socket


def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", 8443))
    listener.listen()
    return listener


listener = listen()
while True:
    conn, client = listener.accept()
    listener.close()
    listener = listen()
    conn.sendall(client[0].encode())
    conn.close()
