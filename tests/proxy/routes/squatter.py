# Binds every name that locks a routing table of peername, as each type of socket.
import signal, socket
kinds = [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
held = [socket.socket(socket.AF_UNIX, kind) for kind in kinds for _ in range(63)]
for number, holder in enumerate(held):
    holder.bind("\0peername-routes-%d" % (number % 63 + 1))
print("bound", len(held) // 3)
signal.pause()
