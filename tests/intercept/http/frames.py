"""HTTP/2's frames (RFC 9113, section 4), by hand, so that no library changes them."""
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind, flags, number, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, number) + payload


def read(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def receive(stream):
    """Kind, flags, stream and payload of the next frame."""
    header = read(stream, 9)
    return header[3], header[4], int.from_bytes(header[5:], "big"), read(stream, int.from_bytes(header[:3], "big"))
