# Follows server.py: many processes request sweeps all the time, while the table has a client and thousands of sockets are open.
import resource
_, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
own = socket.create_server(("127.0.0.1", 9000))
client = socket.create_connection(own.getsockname())
client.sendall(HEADER)
connection, _ = own.accept()
other = socket.create_server(("127.0.0.1", 0), backlog=4096)
kept = [socket.create_connection(other.getsockname()) for _ in range(min(4000, limit - 100))]
for _ in range(63):
    if os.fork() == 0:
        break
else:
    print("begun")
while True:
    try:
        channel().send(b"S")
    except OSError:
        pass
