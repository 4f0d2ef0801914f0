"""Sends one malformed request for each of many hosts, and prints the host and port of each."""
import socket
import ssl

DIRECT = {
    "two-hosts": "GET / HTTP/1.1\r\nHost: {host}\r\nHost: b\r\n\r\n",
    "bad-host": "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "no-host": "GET / HTTP/1.1\r\n\r\n",
    "bad-name": "GET / HTTP/1.1\r\nHost: {host}\r\nX y: 1\r\n\r\n",
    "bare-lf": "GET / HTTP/1.1\nHost: {host}\n\n",
    "long-head": "GET / HTTP/1.1\r\nHost: {host}\r\nA: " + 200_000 * "x" + "\r\n\r\n",
    "two-framings": "POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no-version": "GET /\r\n\r\n",
}
# Through the allowed host, with the port that is denied.
BY_PROXY = {
    "other-host": (80, "GET http://{host}/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    "user-name": (80, "GET http://u:p@{host}/ HTTP/1.1\r\nHost: a.test\r\n\r\n"),
    "bad-port": (80, "GET http://{host}:99999/ HTTP/1.1\r\nHost: {host}:99999\r\n\r\n"),
    "proxy-two-hosts": (80, "GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nHost: a.test\r\n\r\n"),
    "connect-other-host": (443, "CONNECT {host}:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n"),
    "connect-two-hosts": (443, "CONNECT {host}:443 HTTP/1.1\r\nHost: a.test\r\nHost: b\r\n\r\n"),
    "connect-body": (443, "CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\nContent-Length: 3\r\n\r\nabc"),
}
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def talk(client, data):
    client.settimeout(5)
    try:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass
    except OSError:
        pass
    client.close()


def headers_frame(block):
    return bytes([0, 0, len(block), 1, 5, 0, 0, 0, 1]) + block


def talk_http2(name, block):
    context = ssl._create_unverified_context()
    context.set_alpn_protocols(["h2"])
    host = f"{name}.test"
    client = context.wrap_socket(socket.create_connection((host, 443)), server_hostname=host)
    client.settimeout(1)
    try:
        client.sendall(PREFACE + headers_frame(block(host.encode())))
        while client.recv(4096):
            pass
    except OSError:
        pass
    client.close()
    print(f"{host}:443")


for name, text in DIRECT.items():
    host = f"{name}.test"
    talk(socket.create_connection((host, 80)), text.format(host=host).encode())
    print(f"{host}:80")
for name, (port, text) in BY_PROXY.items():
    host = f"{name}.test"
    talk(socket.create_connection(("a.test", 80)), text.format(host=host).encode())
    print(f"{host}:{port}")
talk_http2("bad-index", lambda host: b"\x82\x84\x87\x01\xff")
talk_http2(
    "two-authorities",
    lambda host: b"\x82\x84\x87\x41" + bytes([len(host)]) + host + b"\x40\x0a:authority\x01b",
)
