"""After SIGUSR1, accepts until there is no connection, and prints the client of each."""

import signal
import socket

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
listener = socket.create_server(("", 8443), backlog=1024)
listener.setblocking(False)
signal.sigwait([signal.SIGUSR1])
try:
    while True:
        connection, (ip, port) = listener.accept()
        print(f"accepted {ip}:{port}")
except BlockingIOError:
    print("no more")
signal.pause()
