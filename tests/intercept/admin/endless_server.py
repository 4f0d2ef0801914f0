import socket, threading, time
listener = socket.create_server(("10.81.0.1", 9001))
def serve(client):
    try:
        client.recv(10000)
        client.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        while True:
            client.sendall(b"0123456789abcdef\n")
            time.sleep(0.1)
    except OSError:
        pass
while True:
    client, _ = listener.accept()
    threading.Thread(target=serve, args=(client,), daemon=True).start()
