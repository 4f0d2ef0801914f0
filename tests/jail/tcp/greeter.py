import socket
server = socket.create_server(("10.81.0.1", 7022))
print("ready", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello from the server\n")
    connection.close()
