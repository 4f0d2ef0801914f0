"""Clients with many fields in HTTP/2 header lists, each an index into the static table: one byte.

    field_count.py PROXY CA AUTHORITY flood CONNECTIONS PID   opens streams with long lists; prints the bytes that it sends, and by
                                                              how many the process's memory grows
    field_count.py PROXY CA AUTHORITY list FIELDS             prints the status, and the next request's
    field_count.py PROXY CA AUTHORITY trailers FIELDS         the same for a request's trailers
"""
import socket
import ssl
import sys
import time

import hpack
from frames import ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame, receive

CONTINUATION = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
# Index 21 of the static table: "age" without a value.
FIELD = b"\x95"


def connect(proxy, ca, authority):
    host, port = proxy.rsplit(":", 1)
    stream = socket.create_connection((host, int(port)))
    stream.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += stream.recv(4096)
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(stream, server_hostname=authority.rsplit(":", 1)[0])


def head(authority, method, path, fields):
    pseudo = [(":method", method), (":scheme", "https"), (":authority", authority), (":path", path)]
    return hpack.Encoder().encode(pseudo) + FIELD * fields


def headers(number, block, flags=0):
    """HEADERS, padded and with a priority, and CONTINUATIONs."""
    parts = [block[at:at + 700] for at in range(0, len(block), 700)] or [b""]
    last = len(parts) - 1
    padded = b"\x05" + bytes(4) + b"\x10" + parts[0] + bytes([0x95]) * 5
    frames = frame(HEADERS, flags | 0x28 | (END_HEADERS if last == 0 else 0), number, padded)
    for index, part in enumerate(parts[1:], 1):
        frames += frame(CONTINUATION, END_HEADERS if index == last else 0, number, part)
    return frames


def statuses(stream, numbers):
    """The status of each stream, or how it ended."""
    decoder, found = hpack.Decoder(), {}
    while not set(numbers) <= set(found):
        try:
            kind, flags, number, payload = receive(stream)
        except (EOFError, OSError):
            kind, number = GOAWAY, 0
        if kind == HEADERS:
            found.setdefault(number, dict(decoder.decode(payload)).get(":status"))
        elif kind == RST_STREAM:
            found.setdefault(number, "reset")
        elif kind == GOAWAY:
            for other in numbers:
                found.setdefault(other, "closed")
    return " ".join(found[number] for number in numbers)


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def flood(streams, authority, pid):
    block = head(authority, "POST", "/flood", 1860)
    requests = PREFACE + b"".join(frame(HEADERS, END_HEADERS, 1 + 2 * n, block) for n in range(120))
    before = most = resident(pid)
    for stream in streams:
        try:
            stream.sendall(requests)
        except OSError:
            pass
        most = max(most, resident(pid))
    end = time.monotonic() + 2
    while time.monotonic() < end:
        most = max(most, resident(pid))
        time.sleep(0.01)
    print(len(requests) * len(streams), most - before)


def ask(stream, authority, mode, count):
    if mode == "list":
        stream.sendall(PREFACE + headers(1, head(authority, "GET", "/list", count), END_STREAM))
    else:
        stream.sendall(PREFACE + headers(1, head(authority, "POST", "/put", 0)) + frame(DATA, 0, 1, b"body")
                       + headers(1, FIELD * count, END_STREAM))
    try:
        stream.sendall(headers(3, head(authority, "GET", "/echo", 10), END_STREAM))
    except OSError:
        pass
    print(statuses(stream, [1, 3]))


def main(proxy, ca, authority, mode, count, pid=None):
    if mode == "flood":
        flood([connect(proxy, ca, authority) for _ in range(int(count))], authority, pid)
    else:
        ask(connect(proxy, ca, authority), authority, mode, int(count))


main(*sys.argv[1:])
