# Accepts what TPROXY delivers, and prints the clients.
import select, socket

IP_TRANSPARENT = 19
listener = socket.create_server(("", 8443))
listener.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
listener.setblocking(False)
while True:
    select.select([listener], [], [])
    try:
        client, (ip, port) = listener.accept()
        client.close()
        print(f"accepted {ip}:{port}")
    except BlockingIOError:
        pass
