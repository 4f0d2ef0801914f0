# Listens at one address of a port at which other programs listen, too, and prints the clients.
import select, socket, sys

listener = socket.create_server((sys.argv[1], 8443), reuse_port=True)
listener.setblocking(False)
print("listening")
while True:
    select.select([listener], [], [])
    try:
        client, (ip, port) = listener.accept()
        client.close()
        print(f"accepted {ip}:{port}")
    except BlockingIOError:
        pass
