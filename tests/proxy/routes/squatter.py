"""Binds the names of all 63 route slots, as each type of socket."""
import signal, socket
kinds = [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
sockets = [socket.socket(socket.AF_UNIX, kind) for kind in kinds for _ in range(63)]
for number, sock in enumerate(sockets):
    sock.bind("\0peername-routes-%d" % (number % 63 + 1))
print("bound", len(sockets) // 3)
signal.pause()
