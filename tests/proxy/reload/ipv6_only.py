"""Executes the program in its arguments, and passes it a listening socket for IPv6 only, as a service manager does."""
import os, socket, sys

listener = socket.socket(socket.AF_INET6)
listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
listener.bind(("::", 8443))
listener.listen()
os.set_inheritable(listener.fileno(), True)
if listener.fileno() != 3:
    os.dup2(listener.fileno(), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[1], sys.argv[1:])
