# Polls two non-blocking listeners, IPv4 and IPv6, and prints the clients.
import socket, time

listeners = [socket.create_server(("", 8443)),
             socket.create_server(("::", 8444), family=socket.AF_INET6)]
for listener in listeners:
    listener.setblocking(False)
while True:
    for listener in listeners:
        try:
            client, (ip, port, *_) = listener.accept()
            client.close()
            print(f"accepted [{ip}]:{port}" if ":" in ip else f"accepted {ip}:{port}")
        except BlockingIOError:
            pass
        time.sleep(0.1)
