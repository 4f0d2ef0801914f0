import signal, socket
kinds = [socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET]
held = [socket.socket(socket.AF_UNIX, kind) for kind in kinds for _ in range(63)]
for number, one in enumerate(held):
    one.bind("\0peername-routes-%d" % (number % 63 + 1))
print("bound", len(held) // 3)
signal.pause()
