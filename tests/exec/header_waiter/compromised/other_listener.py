# Listens as soon as port 9000 is free, and reports whether it gets a connection.
import socket, time
while True:
    try:
        probe = socket.create_connection(("127.0.0.1", 9000))
        probe.close()
        break
    except OSError:
        time.sleep(0.05)
while True:
    try:
        listener = socket.create_server(("127.0.0.1", 9000))
        break
    except OSError:
        time.sleep(0.02)
print("listening")
listener.settimeout(3)
try:
    _, peer = listener.accept()
    print("connection from", peer)
except TimeoutError:
    print("no connection")
time.sleep(60)
