"""Serves on one port, while threads accept on another one whose O_NONBLOCK changes all the time."""

import fcntl
import os
import socket
import threading

idle = socket.create_server(("10.81.0.1", 8444))


def accept():
    while True:
        try:
            idle.accept()
        except BlockingIOError:
            pass


def toggle():
    while True:
        fcntl.fcntl(idle, fcntl.F_SETFL, os.O_NONBLOCK)
        fcntl.fcntl(idle, fcntl.F_SETFL, 0)


for work in [toggle] + [accept] * 32:
    threading.Thread(target=work, daemon=True).start()
with socket.create_server(("10.81.0.1", 8443)) as served:
    while True:
        served.accept()[0].sendall(b"served")
