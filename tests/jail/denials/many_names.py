"""Begins handshakes with more names than there are certificates for, and then some with a denied host."""
import socket
import ssl
import threading
import time

context = ssl._create_unverified_context()
refused = []


def shake_hands(name):
    try:
        with socket.create_connection((name, 443)) as client:
            context.wrap_socket(client, server_hostname=name)
    except OSError:
        refused.append(name)


def begin(name):
    thread = threading.Thread(target=shake_hands, args=(name,), daemon=True)
    thread.start()
    return thread


for number in range(40):
    begin(f"n{number}.a.test")
while len(refused) < 20:
    time.sleep(0.01)
# A certificate is issued each second; so one of these may get it.
for thread in [begin("b.test") for _ in range(4)]:
    thread.join()
