"""Reports its address to each client, ignores SIGTERM, and repeats accept(2) after any error."""

import signal
import socket
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server(("10.81.0.1", 8443))
while True:
    try:
        connection, (ip, port) = listener.accept()
    except OSError as error:
        print(error)
        time.sleep(0.02)
        continue
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
