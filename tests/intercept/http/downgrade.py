"""An HTTP/2 client that sends the given request on a connection of its own, and prints the result.

    downgrade.py PROXY CA REQUEST    REQUEST is JSON: headers, data, trailers, each byte a character
"""
import json
import socket
import ssl
import sys

import hpack
from frames import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, receive

host, port = sys.argv[1].split(":")
request = json.loads(sys.argv[3])
tunnel = socket.create_connection((host, int(port)))
tunnel.sendall(b"CONNECT a.test:9001 HTTP/1.1\r\nHost: a.test:9001\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=sys.argv[2])
tls.set_alpn_protocols(["h2"])
stream = tls.wrap_socket(tunnel, server_hostname="a.test")
assert stream.selected_alpn_protocol() == "h2"
stream.settimeout(10)


def to_bytes(text):
    return text.encode("latin-1")


def encode(headers):
    """Each field as a literal without indexing (RFC 7541, section 6.2.2), so that no encoder changes it."""
    block = b""
    for name, value in headers:
        for part, first in ((to_bytes(name), b"\0"), (to_bytes(value), b"")):
            length = bytes([len(part)]) if len(part) < 127 else bytes([127, len(part) - 127])
            block += first + length + part
    return block


data = [to_bytes(part) for part in request.get("data", [])]
trailers = request.get("trailers")
parts = [frame(HEADERS, END_HEADERS, 1, encode(request["headers"]))]
parts += [frame(DATA, 0, 1, part) for part in data]
if trailers is not None:
    parts.append(frame(HEADERS, END_HEADERS, 1, encode(trailers)))
# The last frame ends the request.
last = bytearray(parts[-1])
last[4] |= END_STREAM
parts[-1] = bytes(last)

seen = {"status": None, "body": "", "end": None}
decoder = hpack.Decoder()


try:
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + b"".join(parts))
    while seen["end"] is None:
        kind, flags, _, payload = receive(stream)
        if kind == SETTINGS and not flags & ACK:
            stream.sendall(frame(SETTINGS, ACK, 0))
        elif kind == HEADERS:
            fields = dict(decoder.decode(payload))
            seen["status"] = int(fields.get(":status", seen["status"]))
        elif kind == DATA:
            seen["body"] += payload.decode("latin-1")
        elif kind == RST_STREAM:
            seen["end"] = f"reset {int.from_bytes(payload, 'big')}"
        elif kind == GOAWAY and int.from_bytes(payload[4:8], "big"):
            seen["end"] = f"goaway {int.from_bytes(payload[4:8], 'big')}"
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            seen["end"] = "complete"
except (EOFError, ConnectionError, ssl.SSLError):
    seen["end"] = "closed"
print(json.dumps(seen))
