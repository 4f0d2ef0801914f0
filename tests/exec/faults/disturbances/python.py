# Prints each client, and how many descriptors the server has.
import os, socket

listener = socket.create_server(("", 8443))
while True:
    client, (ip, port) = listener.accept()
    client.close()
    print(f"accepted {ip}:{port} with", len(os.listdir("/proc/self/fd")))
