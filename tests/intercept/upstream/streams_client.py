"""Opens a stream for each path, each after the head of the previous response, and prints the statuses.

usage: streams_client.py PROXY CA AUTHORITY (PATH | post PATH | cut PATH | wait FILE)...
`post` sends one byte of a body, which does not end.
`cut` does the same, and resets the stream with NO_ERROR after the response.
`wait` writes FILE, and reads no more until the file is removed, or a minute has passed.
"""
import os, socket, ssl, sys, time
import h2.config, h2.connection, h2.events

proxy, ca, authority, *steps = sys.argv[1:]
host, port = proxy.split(":")
tunnel = socket.create_connection((host, int(port)), timeout=10)
tunnel.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=ca)
tls.set_alpn_protocols(["h2"])
wire = tls.wrap_socket(tunnel, server_hostname=authority.split(":")[0])
assert wire.selected_alpn_protocol() == "h2"
client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
client.initiate_connection()
statuses, ended = {}, set()

def wait_removed(file):
    open(file, "w").close()
    deadline = time.monotonic() + 60
    while os.path.exists(file) and time.monotonic() < deadline:
        time.sleep(0.01)

steps = iter(steps)
for step in steps:
    if step == "wait":
        wait_removed(next(steps))
        continue
    is_post = step in ("post", "cut")
    method, path = ("POST", next(steps)) if is_post else ("GET", step)
    stream = client.get_next_available_stream_id()
    client.send_headers(stream, [(":method", method), (":scheme", "https"), (":path", path),
        (":authority", authority)], end_stream=not is_post)
    if is_post:
        client.send_data(stream, b"x")
    wire.sendall(client.data_to_send())
    while stream not in (ended if step == "cut" else statuses):
        data = wire.recv(65536)
        assert data, "the connection ended"
        for event in client.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                statuses[event.stream_id] = dict(event.headers)[":status"]
            if isinstance(event, h2.events.StreamEnded):
                ended.add(event.stream_id)
        wire.sendall(client.data_to_send())
    if step == "cut":
        client.reset_stream(stream, 0)
        wire.sendall(client.data_to_send())
print(*statuses.values(), flush=True)
