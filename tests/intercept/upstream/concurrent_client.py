"""Sends a GET for each path at the same time, on one HTTP/2 connection, and prints `PATH STATUS CODE` for each.

usage: concurrent_client.py PROXY CA AUTHORITY PATH...
"""
import socket, ssl, sys
import h2.config, h2.connection, h2.events

proxy, ca, authority, *paths = sys.argv[1:]
host, port = proxy.split(":")
tunnel = socket.create_connection((host, int(port)), timeout=30)
tunnel.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=ca)
tls.set_alpn_protocols(["h2"])
wire = tls.wrap_socket(tunnel, server_hostname=authority.split(":")[0])
assert wire.selected_alpn_protocol() == "h2"
client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
client.initiate_connection()
opened = {}
for path in paths:
    stream = client.get_next_available_stream_id()
    opened[stream] = path
    client.send_headers(stream, [(":method", "GET"), (":scheme", "https"), (":path", path),
        (":authority", authority)], end_stream=True)
# In one TLS record, so that the proxy reads all of them before it answers one.
wire.sendall(client.data_to_send())
lines = {}
while len(lines) < len(paths):
    data = wire.recv(65536)
    assert data, "the connection ended"
    for event in client.receive_data(data):
        if isinstance(event, h2.events.ResponseReceived):
            head, path = dict(event.headers), opened[event.stream_id]
            lines[path] = f"{path} {head[':status']} {head.get('x-peername-code')}"
    wire.sendall(client.data_to_send())
print(*(lines[path] for path in paths), sep="\n", flush=True)
