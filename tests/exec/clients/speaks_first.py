import socket

listener, kept = socket.create_server(("", 8443)), []
print("serving")
while True:
    client, (ip, port) = listener.accept()
    print(f"accepted {ip}:{port}")
    client.sendall(f"{ip}:{port}\n".encode())
    kept.append(client)
