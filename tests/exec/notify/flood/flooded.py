"""Accepts at port 8444 in a thread, and at port 8443. Tells each client of port 8443 how many connections wait at port 8444."""

import socket
import struct
import threading

flooded, served = [socket.create_server(("", port), backlog=4096) for port in (8444, 8443)]


def accept():
    while True:
        flooded.accept()[0].close()


threading.Thread(target=accept, daemon=True).start()
while True:
    client, _ = served.accept()
    info = flooded.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    # tcpi_unacked: of a listener, the length of its accept queue.
    (waiting,) = struct.unpack_from("I", info, 24)
    client.sendall(str(waiting).encode())
    client.close()
