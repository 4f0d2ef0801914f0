# An origin of HTTP/2 at 9001 that reads no more of a body than its first window, 65535 bytes, and then answers.
import socket, ssl, struct, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
tls.set_alpn_protocols(["h2"])
DATA, HEADERS, SETTINGS, PING, ACK, END_STREAM, END_HEADERS = 0, 1, 4, 6, 1, 1, 4

def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

def serve(stream):
    window = 65535
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = tls.wrap_socket(stream, server_side=True)
        stream.sendall(frame(SETTINGS, 0, 0))
        received = stream.makefile("rb")
        received.read(24)
        while head := received.read(9):
            payload = received.read(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind in (SETTINGS, PING) and not flags & ACK:
                stream.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == DATA:
                window -= len(payload)
            is_read = kind == DATA and window == 0
            if is_read or kind == HEADERS and flags & END_STREAM:
                # `:status: 200` of HPACK's static table.
                end = END_STREAM | END_HEADERS
                stream.sendall(frame(HEADERS, end, int.from_bytes(head[5:], "big"), b"\x88"))
    except OSError:
        pass

listener = socket.create_server(("10.81.0.1", 9001))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
