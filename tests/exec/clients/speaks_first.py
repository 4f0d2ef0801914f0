import socket

listener, kept = socket.create_server(("", 8443)), []
print("serving")
while True:
    client, (ip, port) = listener.accept()
    # The header waiter raises SO_RCVLOWAT while a header is incomplete.
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    print(f"accepted {ip}:{port}")
    client.sendall(f"{ip}:{port}\n".encode())
    kept.append(client)
