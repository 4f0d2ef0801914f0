"""Reports its address to each client. At SIGUSR1 it closes the listener while a thread waits in accept(2)."""

import os
import signal
import socket
import threading
import time

# Blocked in all threads, so that the signal interrupts no accept(2).
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
listener = socket.create_server(("10.81.0.1", 8443))


def accept():
    while True:
        try:
            connection, (ip, port) = listener.accept()
        except OSError as error:
            os.write(1, f"accept: {error.strerror}\n".encode())
            return
        connection.sendall(f"{ip}:{port}".encode())
        connection.close()


threading.Thread(target=accept, daemon=True).start()
signal.sigwait([signal.SIGUSR1])
# The thread, which has just served a client, waits in its next accept(2) by then.
time.sleep(0.2)
listener.close()
os.write(1, b"closed\n")
signal.pause()
