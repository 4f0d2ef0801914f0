# Reports to each client what getsockopt(SO_PEERNAME) returns, and the error of a buffer that is larger than the address.
import errno, socket, struct
SO_PEERNAME = 28
listener = socket.create_server(("10.81.0.1", 8443))
while True:
    connection, _ = listener.accept()
    _, port, ip = struct.unpack("!HH4s8x", connection.getsockopt(socket.SOL_SOCKET, SO_PEERNAME, 16))
    try:
        connection.getsockopt(socket.SOL_SOCKET, SO_PEERNAME, 17)
    except OSError as error:
        result = errno.errorcode[error.errno]
    connection.sendall(f"{socket.inet_ntoa(ip)}:{port} {result}\n".encode())
    connection.close()
