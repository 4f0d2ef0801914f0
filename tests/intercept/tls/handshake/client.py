# Does a TLS handshake through the proxy, and reports what the third argument selects.
import socket, ssl, struct, sys
host, port = sys.argv[1].split(":")
case = sys.argv[3]
tls = ssl.create_default_context(cafile=sys.argv[2])
tunnel = socket.create_connection((host, int(port)))
tunnel.settimeout(10)
tunnel.sendall(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)

def segments():
    # tcpi_data_segs_in of struct tcp_info is at 152.
    info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", info, 152)[0]

def something_comes():
    stream.settimeout(0.5)
    try:
        return socket.socket.recv(stream, 1, socket.MSG_PEEK)
    except TimeoutError:
        return False
    finally:
        stream.settimeout(10)

if case in ("finished", "garbage"):
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
if case == "settings":
    tls.set_alpn_protocols(["h2"])

if case == "garbage":
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        tls.wrap_bio(incoming, outgoing, server_hostname="a.test").do_handshake()
    except ssl.SSLWantReadError:
        tunnel.sendall(outgoing.read())
    flight = b""
    # Until ServerHelloDone.
    while not flight.endswith(b"\x0e\0\0\0"):
        flight += tunnel.recv(65536)
    tunnel.sendall(b"\x17\3\3\0\4what")
    end = tunnel.recv(65536)
    print("alert" if end.startswith(b"\x15\3\3\0\2\2") else end)
    sys.exit()

stream = tls.wrap_socket(tunnel, server_hostname="a.test")
if case == "finished":
    print(stream.version())
if case == "settings":
    print("SETTINGS" if stream.recv(9)[3] == 4 else "something else")
if case == "tickets":
    early, before = something_comes(), segments()
    stream.sendall(b"GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert b" 200 " in stream.recv(65536)
    ticket = "with a ticket" if stream.session.has_ticket else "without a ticket"
    early = "something" if early else "nothing"
    print(f"{early} before the request, {segments() - before} segment, {ticket}")
