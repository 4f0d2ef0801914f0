"""An origin that ends too soon, or never: HTTP/1.1 at 9001, HTTP/2 at 9003. The path selects the fault.

    truncation.py CERTIFICATE KEY
"""
import socket
import ssl
import struct
import sys
import threading
import time

import hpack
from frames import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, read, receive

BODY = b"0123456789"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n0123\r\n"


def length(count):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % count


HTTP1 = {
    "/whole": length(10) + BODY,
    "/whole-until-close": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "/until-close": b"HTTP/1.1 200 OK\r\n\r\n" + BODY,
    "/length": length(20) + BODY,
    "/length-and-reset": length(20) + BODY,
    "/inside-a-chunk": CHUNKS + b"6\r\n456",
    "/between-chunks": CHUNKS,
    "/inside-the-last-chunk": CHUNKS + b"0\r\n",
}


def head(number, *fields):
    block = hpack.Encoder().encode([(":status", "200"), *fields])
    return frame(HEADERS, END_HEADERS, number, block)


def http2(path, number):
    body = frame(DATA, 0, number, BODY)
    return {
        "/whole": head(number, ("content-length", "10")) + frame(DATA, END_STREAM, number, BODY),
        "/whole-until-close": head(number) + frame(DATA, END_STREAM, number, BODY),
        "/short-of-its-length": head(number, ("content-length", "20")) + frame(DATA, END_STREAM, number, BODY),
        "/reset": head(number) + body + frame(RST_STREAM, 0, number, struct.pack(">I", 2)),
        "/reset-without-error": head(number) + body + frame(RST_STREAM, 0, number, struct.pack(">I", 0)),
        "/closed": head(number) + body,
        "/gone-away": head(number) + body + frame(GOAWAY, 0, 0, struct.pack(">II", number, 0)),
        "/gone-away-unprocessed": head(number) + body + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0)),
    }[path]


def serve_http1(stream):
    asked = b""
    while b"\r\n\r\n" not in asked:
        more = stream.recv(65536)
        if not more:
            return
        asked += more
    path = asked.split()[1].decode()
    if path == "/interim":
        many = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 400
        while True:
            stream.sendall(many)
    stream.sendall(HTTP1[path])
    if path == "/length-and-reset":
        # The response has arrived by then; a reset discards what has not.
        time.sleep(0.2)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif path != "/until-close":
        # Only /until-close and the reset above lack close_notify. Without it, any party may have closed the connection.
        stream.unwrap()


def serve_http2(stream):
    decoder = hpack.Decoder()
    read(stream, 24)
    stream.sendall(frame(SETTINGS, 0, 0))
    while True:
        kind, flags, number, payload = receive(stream)
        if kind == SETTINGS and not flags & ACK:
            stream.sendall(frame(SETTINGS, ACK, 0))
        if kind != HEADERS:
            continue
        path = dict(decoder.decode(payload))[":path"]
        if path == "/interim":
            plain = b"".join(b"\0" + bytes([len(n)]) + n + bytes([len(v)]) + v
                             for n, v in [(b":status", b"103"), (b"link", b"</x>")])
            many = frame(HEADERS, END_HEADERS, number, plain) * 400
            while True:
                stream.sendall(many)
        stream.sendall(http2(path, number))
        if path in ("/closed", "/gone-away"):
            stream.unwrap()
            return


def serve(connection, tls, handle):
    try:
        stream = tls.wrap_socket(connection, server_side=True)
        handle(stream)
        stream.close()
    except (OSError, EOFError, ValueError):
        connection.close()


def listen(port, protocol, handle):
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*sys.argv[1:3])
    tls.set_alpn_protocols([protocol])
    server = socket.create_server(("10.81.0.1", port))
    while True:
        connection, _ = server.accept()
        threading.Thread(target=serve, args=(connection, tls, handle), daemon=True).start()


threading.Thread(target=listen, args=(9003, "h2", serve_http2)).start()
listen(9001, "http/1.1", serve_http1)
