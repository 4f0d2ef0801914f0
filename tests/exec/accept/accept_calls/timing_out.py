# Accepts with a receive timeout of a second. Tells each client its address, and prints each error and the time until then.
import errno, socket, struct, time

listener = socket.create_server(("10.81.0.1", 8443))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 1, 0))
while True:
    start = time.monotonic()
    try:
        connection, (ip, port) = listener.accept()
    except OSError as error:
        print(f"{errno.errorcode[error.errno]} after {time.monotonic() - start:.0f} s")
        continue
    connection.sendall(f"{ip}:{port}".encode())
    connection.close()
