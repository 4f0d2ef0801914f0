"""A backend that accepts a thousand connections, and leaves what they send unread."""
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
listener = socket.create_server(("127.0.0.1", 9000), backlog=1024)
connections = [listener.accept() for _ in range(1000)]
for connection, _ in connections:
    connection.recv(7, socket.MSG_PEEK | socket.MSG_WAITALL)
print("full")
listener.accept()
