# Prints its clients. After the first one it accepts no other until a file exists.
import os, socket, sys, time

listener = socket.create_server(("10.81.0.1", 8443))
while True:
    connection, (ip, port) = listener.accept()
    print(f"accepted {ip}:{port}")
    connection.close()
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
