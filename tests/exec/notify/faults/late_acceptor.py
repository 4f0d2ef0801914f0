import os, signal, socket
listener = socket.create_server(("10.81.0.1", 8443))
if os.fork() == 0:
    print("late", os.getpid())
    signal.pause()
while True:
    connection, (ip, port) = listener.accept()
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
