"""Connects to four hosts, and sends none of them a request."""

import socket
import ssl


def connect(host):
    return socket.create_connection((host, 443), 10)


# Neither TLS nor HTTP.
raw = connect("b.test")
raw.sendall(b"\0raw\n")
try:
    raw.recv(1)
except ConnectionResetError:
    pass

# Trusts no authority.
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
try:
    context.wrap_socket(connect("c.test"), server_hostname="c.test")
except ssl.SSLCertVerificationError:
    pass

# No request after the handshake.
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
context.wrap_socket(connect("d.test"), server_hostname="d.test").close()

# Nothing at all: only whether the port is open.
connect("e.test").close()
