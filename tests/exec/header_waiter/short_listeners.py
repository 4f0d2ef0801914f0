# Listens at port 8443, and opens and closes a thousand other listeners.
import socket, time

served = socket.create_server(("", 8443))
for port in range(9000, 9500):
    socket.create_server(("127.0.0.1", port)).close()
# The port of a closed listener is free at once.
for _ in range(500):
    socket.create_server(("127.0.0.1", 9000)).close()
print("done")
time.sleep(60)
