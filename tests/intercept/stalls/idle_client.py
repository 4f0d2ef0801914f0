# Sends one HTTP/2 request, then idles, and prints its status, GOAWAY and the end of the connection.
import socket, ssl, sys
import h2.config, h2.connection, h2.events
host, port = sys.argv[1].split(":")
tunnel = socket.create_connection((host, int(port)), timeout=10)
tunnel.sendall(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=sys.argv[2])
tls.set_alpn_protocols(["h2"])
stream = tls.wrap_socket(tunnel, server_hostname="a.test")
client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
client.initiate_connection()
client.send_headers(1, [(":method", "GET"), (":scheme", "https"), (":path", "/echo"),
    (":authority", "a.test")], end_stream=True)
stream.sendall(client.data_to_send())
said, data = [], b""
while more := stream.recv(65536):
    data += more
    # This client understands no frame after GOAWAY, so each by itself (RFC 9113, section 4.1).
    while len(data) >= 9 and "goaway" not in said:
        size = 9 + int.from_bytes(data[:3], "big")
        if len(data) < size:
            break
        frame, data = data[:size], data[size:]
        for event in client.receive_data(frame):
            if isinstance(event, h2.events.ResponseReceived):
                said.append(dict(event.headers)[":status"])
            if isinstance(event, h2.events.ConnectionTerminated):
                said.append("goaway")
    stream.sendall(client.data_to_send())
print(*said, "end")
