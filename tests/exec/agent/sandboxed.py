"""A server, and a child of it in a network of its own, as in a sandbox, whose calls are the first that the supervisor gets: at the
start, and because the server waits in select(2), also after a reload. With the argument `accept`, the child is the server, at the
listener of its parent. Reports to each client what accept(2) and getpeername(2) return, as `server.c --brief` does."""
import ctypes
import os
import select
import signal
import socket
import sys
import time

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def enter_own_network():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def serve(listener):
    listener.setblocking(False)
    while True:
        select.select([listener], [], [])
        try:
            client, (ip, port) = listener.accept()
        except BlockingIOError:
            continue
        client.setblocking(True)
        client.recv(64)
        peer = client.getpeername()
        client.sendall(f"accept {ip}:{port} getpeername {peer[0]}:{peer[1]}\n".encode())
        client.close()


if sys.argv[1:] == ["accept"]:
    listener = socket.create_server(("0.0.0.0", 8443))
    if os.fork() == 0:
        enter_own_network()
        serve(listener)
    signal.pause()
begun, begin = os.pipe()
if os.fork() == 0:
    enter_own_network()
    own, other = socket.socketpair()
    own.getpeername()
    os.write(begin, b"+")
    while True:
        own.getpeername()
        time.sleep(0.02)
os.read(begun, 1)
serve(socket.create_server(("0.0.0.0", 8443)))
