"""A process, its child and a thread of each accept at one listener, and report its address to each client. They ignore SIGTERM, and
repeat accept(2) after any error."""

import os
import signal
import socket
import threading
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("10.81.0.1", 8443))


def accept(name):
    while True:
        try:
            connection, (ip, port) = listener.accept()
        except OSError as error:
            # By one write(2): another line can't get in between.
            os.write(1, f"{name}: {error.strerror}\n".encode())
            time.sleep(0.02)
            continue
        connection.sendall(f"{ip}:{port}".encode())
        connection.close()


process = "parent" if os.fork() else "child"
threading.Thread(target=accept, args=[f"thread of the {process}"]).start()
accept(process)
