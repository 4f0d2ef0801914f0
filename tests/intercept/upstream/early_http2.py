# An origin of HTTP/2 at 9001 that answers each head with a whole response. It takes the first 65,535 bytes of bodies on a
# connection, the initial window, and then prints "full". 100 streams per connection.
import socket, ssl, struct, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
tls.set_alpn_protocols(["h2"])
DATA, SETTINGS, HEADERS, PING, ACK, END = 0, 4, 1, 6, 1, 5

def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

def serve(stream):
    try:
        # Otherwise Nagle's algorithm may hold the response back for ever, behind the session tickets of TLS.
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = tls.wrap_socket(stream, server_side=True)
        stream.sendall(frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100)))
        received = stream.makefile("rb")
        received.read(24)
        window = 65535
        while head := received.read(9):
            payload = received.read(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind in (SETTINGS, PING) and not flags & ACK:
                stream.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind == DATA:
                window -= len(payload)
                if window == 0: print("full", flush=True)
            if kind == HEADERS:
                # END_STREAM, END_HEADERS; `:status: 200` of HPACK's static table.
                stream.sendall(frame(HEADERS, END, int.from_bytes(head[5:], "big"), b"\x88"))
    except OSError:
        pass

listener = socket.create_server(("10.81.0.1", 9001))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
