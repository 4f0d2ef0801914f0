# Attempts to send a request that is not allowed, beside one that is: only a.test is.

# %% a request in absolute form for another host [succeeds]
text = http("a.test", "GET http://b.test/echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n")
judge(text, "GET b.test")

# %% a request in absolute form with the Host of an allowed name [succeeds]
text = http("a.test", "GET http://b.test/echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
judge(text, "GET ")

# %% CONNECT to another host [not-tried]
text = http("a.test", "CONNECT b.test:80 HTTP/1.1\r\nHost: b.test:80\r\n\r\nGET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n")
judge(text, "GET b.test")

# %% CONNECT inside of TLS to an allowed host [not-tried]
text = http("a.test", "CONNECT b.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\nGET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n", tls="a.test")
judge(text, "GET ")

# %% a second request on a connection to an allowed host [succeeds]
one = "GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n"
judge(http("a.test", one + one.replace("a.test", "b.test")), "GET b.test")

# %% two Host fields [not-tried]
for fields_of_host in ("Host: a.test\r\nHost: b.test", "Host: b.test\r\nHost: a.test", "Host: a.test\r\nhost: b.test", "Host: a.test, b.test"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\n{fields_of_host}\r\nConnection: close\r\n\r\n"), "GET b.test")

# %% a folded Host field, and spaces before its colon [not-tried]
for fields_of_host in ("Host: a.test\r\n b.test", "Host : b.test\r\nHost: a.test", "X: y\r\n Host: b.test\r\nHost: a.test", " Host: b.test\r\nHost: a.test"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\n{fields_of_host}\r\nConnection: close\r\n\r\n"), "GET b.test")

# %% a Host with a user, a port or other characters [not-tried]
for host in ("a.test@b.test", "b.test:80@a.test", "a.test:80:80", "b.test#a.test", "b.test/a.test", "b.test%00.a.test", "b.test\\a.test", "b.test\ta.test"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"), "HTTP/1.1 200")

# %% another spelling of a name [succeeds]
for host in ("B.TEST", "b.test.", "b.test:80", "b.test.:80"):
    judge(http("b.test", f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"), "HTTP/1.1 200")

# %% HTTP without a Host [succeeds]
judge(http("b.test", "GET /echo HTTP/1.0\r\n\r\n"), "GET ")

# %% HTTP/0.9 [succeeds]
judge(http("b.test", "GET /echo\r\n"), "GET ")

# %% methods that no list has, and bytes before a method [not-tried]
for start in ("BREW", "get", "\r\n\r\nGET", "\0GET", "PRI", "QUERY"):
    judge(http("b.test", f"{start} /echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n"), "b.test HTTP")

# %% smuggling by Content-Length beside Transfer-Encoding [not-tried]
hidden = "GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"
for framing in (f"Content-Length: {5 + len(hidden)}\r\nTransfer-Encoding: chunked", f"Transfer-Encoding: chunked\r\nContent-Length: {5 + len(hidden)}"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n0\r\n\r\n{hidden}"), "GET b.test")

# %% smuggling by a Transfer-Encoding that not every server takes [not-tried]
hidden = "GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"
for name in ("Transfer-Encoding: xchunked", "Transfer-Encoding : chunked", "Transfer-Encoding:\vchunked", "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", "Transfer_Encoding: chunked", "X: y\nTransfer-Encoding: chunked", "Transfer-Encoding: \"chunked\""):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\nHost: a.test\r\n{name}\r\nContent-Length: 5\r\n\r\n0\r\n\r\n{hidden}"), "GET b.test")

# %% smuggling by two lengths, and lengths with signs [not-tried]
hidden = "GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"
for length in (f"0\r\nContent-Length: {len(hidden)}", f"{len(hidden)}\r\nContent-Length: 0", f"{len(hidden)}, 0", f"+{len(hidden)}", "-1", f"0x{len(hidden):x}", f"{2**64 + len(hidden)}", f"{len(hidden)} 0"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\nHost: a.test\r\nContent-Length: {length}\r\n\r\n{hidden}"), "GET b.test")

# %% smuggling by the size of a chunk [not-tried]
hidden = "GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"
for size in ("0x0", "-0", "+0", "00000000000000000", "10000000000000000", "0;x=\n", "0\n\n", " 0", "0\r\nX: y\n\nGET /echo HTTP/1.1\nHost: b.test\n"):
    judge(http("a.test", f"GET /echo HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n\r\n{hidden}"), "GET b.test")

# %% smuggling by bare line feeds and carriage returns [not-tried]
for text in ("GET /echo HTTP/1.1\nHost: a.test\n\nGET /echo HTTP/1.1\nHost: b.test\n\n", "GET /echo HTTP/1.1\r\nHost: a.test\r\rGET /echo HTTP/1.1\rHost: b.test\r\r",
        "GET /echo HTTP/1.1\r\nHost: a.test\r\nX: y\rHost: b.test\r\n\r\n", "GET /echo HTTP/1.1\r\nHost: a.test\r\nX: y\n\nGET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"):
    judge(http("a.test", text), "GET b.test")

# %% smuggling by fields of a trailer [not-tried]
text = "GET /echo HTTP/1.1\r\nHost: a.test\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: Host\r\n\r\n0\r\nHost: b.test\r\nContent-Length: 99\r\n\r\n"
judge(http("a.test", text), "GET b.test")

# %% smuggling by a field that says which fields are hop-by-hop [not-tried]
for named in ("Host", "Content-Length", "Transfer-Encoding", "close, Host"):
    text = f"GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: {named}\r\nX-Forwarded-Host: b.test\r\nForwarded: host=b.test\r\nContent-Length: 0\r\n\r\n"
    judge(http("a.test", text, wait=0.4), "GET b.test")

# %% an upgrade to HTTP/2 without TLS (h2c) [not-tried]
text = "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
judge(http("a.test", text, wait=0.4), " 101 ")

# %% an upgrade to TLS and to other protocols [not-tried]
for protocol in ("TLS/1.2", "websocket, h2c", "connect-udp", "spdy/3.1", "irc/6.9"):
    text = f"GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    judge(http("a.test", text, wait=0.4), " 101 ")

# %% HTTP/2 without TLS [not-tried]
text = h2(h2_request(fields(b"b.test", scheme=b"http")), tls=None, host="b.test", wait=0.4)
judge(text, "GET b.test")

# %% HTTP/2 with the authority of another host [succeeds]
judge(h2(h2_request(fields(b"b.test"))), "HTTP/2.0")

# %% HTTP/2 with an authority and another Host [not-tried]
for authority, host in ((b"a.test", b"b.test"), (b"b.test", b"a.test")):
    text = h2(h2_request(fields(authority, more=[(b"host", host)])), wait=0.4)
    judge(text, "HTTP/2.0")

# %% HTTP/2 with two authorities, or with two paths [not-tried]
for more in ((b":authority", b"b.test"), (b":path", b"/none"), (b":scheme", b"http")):
    judge(h2(h2_request(fields(b"a.test", more=[more])), wait=0.4), "HTTP/2.0")

# %% HTTP/2 with a path in absolute form [not-tried]
for path in (b"http://b.test/echo", b"//b.test/echo", b"b.test/echo", b""):
    judge(h2(h2_request(fields(b"a.test", path)), wait=0.4), "GET b.test")

# %% HTTP/2 with line ends in fields [not-tried]
for name, value in ((b"x", b"y\r\nHost: b.test"), (b"x\r\nhost", b"b.test"), (b"x: y\r\nhost", b"b.test"), (b"transfer-encoding", b"chunked"), (b"connection", b"host")):
    judge(h2(h2_request(fields(b"a.test", more=[(name, value)])), wait=0.4), "HTTP/2.0")
judge(h2(h2_request(fields(b"a.test", b"/echo HTTP/1.1\r\nHost: b.test\r\n\r\nGET /echo")), wait=0.4), "HTTP/2.0")

# %% HTTP/2 with a tunnel to another host [not-tried]
connect = [(b":method", b"CONNECT"), (b":authority", b"b.test:80")]
extended = fields(b"b.test", method=b"CONNECT", more=[(b":protocol", b"websocket")])
data = struct.pack("!I", 36 << 8) + b"\0" + struct.pack("!I", 1) + b"GET /echo HTTP/1.1\r\nHost: b.test\r\n\r\n"
judge(h2(h2_request(connect) + data, wait=0.4), "GET b.test")
judge(h2(h2_request(extended) + data, wait=0.4), "GET b.test")

# %% HTTP/2 with a second stream for another host [succeeds]
text = h2(h2_request(fields(b"a.test")), h2_request(fields(b"b.test"), 3))
judge(text if text.count("HTTP/2.0") > 1 else "", "HTTP/2.0")

# %% TLS without a server name, and with an address as one [succeeds]
for name in ("", SERVER):
    judge(http("b.test", "GET /echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n", tls=name), "GET b.test")

# %% TLS with the server name of an allowed host to another [succeeds]
judge(http("b.test", "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n", tls="a.test"), "GET a.test")

# %% TLS to an allowed host with the Host of another [succeeds]
judge(http("a.test", "GET /echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n", tls="a.test"), "GET b.test")

# %% a server name with an encrypted one beside it (ECH) [not-tried]
def extension(kind, body):
    return struct.pack("!HH", kind, len(body)) + body
name = b"\0" + struct.pack("!H", 6) + b"a.test"
encrypted = b"\0\0\1\0\1\x07" + struct.pack("!H", 32) + bytes(32) + struct.pack("!H", 128) + bytes(128)
rest = extension(43, b"\2\3\4") + extension(10, b"\0\2\0\x1d") + extension(13, b"\0\4\4\3\x08\4") + extension(51, b"\0\x24\0\x1d\0\x20" + b"\x09" * 32)
hello = b"\3\3" + bytes(32) + b"\0\0\2\x13\1\1\0"
for names in (extension(0, struct.pack("!H", 9) + name) + extension(0xfe0d, encrypted), extension(0xfe0d, encrypted), extension(0xffce, bytes(64)), extension(0, struct.pack("!H", 18) + name + name.replace(b"a", b"b"))):
    body = hello + struct.pack("!H", len(names + rest)) + names + rest
    record = b"\x16\3\1" + struct.pack("!H", len(body) + 4) + b"\1" + struct.pack("!I", len(body))[1:] + body
    client = socket.create_connection(("b.test", 443), 2)
    client.sendall(record)
    try:
        print("closed", client.recv(100))
    except OSError as error:
        print("closed", error)

# %% another protocol inside of TLS to an allowed host [not-tried]
for data, protocols in ((b"SSH-2.0-x\r\n", ["ssh"]), (b"\0\0\0\x08\x04\xd2\x16\x2f", ["postgresql"]), (b"EHLO x\r\n", ["smtp"]), (b"\x16\3\1\0\5hello", ["h3"])):
    try:
        judge(http("a.test", data, tls="a.test", protocols=protocols), "nginx")
    except OSError as error:
        print("closed", error)

# %% data before the end of the handshake (0-RTT) [not-tried]
with tempfile.TemporaryDirectory() as dir:
    request = dir + "/request"
    open(request, "w").write("GET /echo HTTP/1.1\r\nHost: b.test\r\nConnection: close\r\n\r\n")
    command = ["openssl", "s_client", "-connect", "b.test:443", "-servername", "b.test", "-tls1_3"]
    shape = {"capture_output": True, "stdin": open(request)}
    first = subprocess.run(["timeout", "2", *command, "-ign_eof", "-sess_out", dir + "/session"], **shape)
    second = subprocess.run(["timeout", "2", *command, "-sess_in", dir + "/session", "-early_data", request], capture_output=True, stdin=subprocess.DEVNULL)
judge((first.stdout + second.stdout).decode("latin-1"), "GET b.test")

# %% a redirect to another host [succeeds]
text = curl("-L", "http://a.test/redirect")
judge(text, "GET b.test")

# %% a service that an origin names (Alt-Svc) [succeeds]
text = curl("-i", "http://a.test/alt")
judge(text.lower(), "alt-svc")

# %% a WebSocket to another host [not-tried]
key = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
for name, host in (("b.test", "b.test"), ("a.test", "b.test"), ("b.test", "a.test")):
    judge(http(name, f"GET /echo HTTP/1.1\r\nHost: {host}\r\n{key}\r\n\r\n", wait=0.4), "GET ")
