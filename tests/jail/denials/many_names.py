"""Begins handshakes with more names than there are certificates for, and then one with a denied host."""
import socket
import ssl
import threading
import time

context = ssl._create_unverified_context()


def shake_hands(name):
    try:
        with socket.create_connection((name, 443)) as client:
            context.wrap_socket(client, server_hostname=name)
    except OSError:
        pass


for number in range(40):
    threading.Thread(target=shake_hands, args=(f"n{number}.a.test",), daemon=True).start()
time.sleep(0.5)
shake_hands("b.test")
