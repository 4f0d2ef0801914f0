# Binds a port of the interceptor, and prints whether a second bind(2) fails with EADDRINUSE.
import errno, socket

server = socket.socket()
server.bind(("127.0.0.1", 80))
server.listen()
try:
    socket.socket().bind(("127.0.0.1", 80))
except OSError as error:
    print(error.errno == errno.EADDRINUSE)
