# Opens a WebSocket over HTTP/2 (RFC 8441), and prints the echoes, or the status of the refusal.
import socket, ssl, sys
import h2.config, h2.connection, h2.events, h2.settings
host, port = sys.argv[1].split(":")
tunnel = socket.create_connection((host, int(port)))
tunnel.sendall(b"CONNECT a.test:9001 HTTP/1.1\r\nHost: a.test:9001\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=sys.argv[2])
tls.set_alpn_protocols(["h2"])
stream = tls.wrap_socket(tunnel, server_hostname="a.test")
assert stream.selected_alpn_protocol() == "h2"
client = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
client.initiate_connection()
stream.sendall(client.data_to_send())
received = b""
answered = False

def pump(until):
    global received, answered
    while not until():
        data = stream.recv(65536)
        assert data, "the connection ended"
        for event in client.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                status = dict(event.headers)[":status"]
                if status != "200":
                    print(status)
                    sys.exit()
                answered = True
            if isinstance(event, h2.events.DataReceived):
                received += event.data
                client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        stream.sendall(client.data_to_send())

code = h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL
pump(lambda: client.remote_settings.get(code) == 1)
client.send_headers(1, [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "https"),
    (":path", sys.argv[3]), (":authority", "a.test:9001"), ("sec-websocket-version", "13")])
stream.sendall(client.data_to_send())
pump(lambda: answered)
said = []
for word in [b"one", b"two"]:
    mask = b"\1\2\3\4"
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(word))
    client.send_data(1, bytes([0x81, 0x80 | len(word)]) + mask + masked)
    stream.sendall(client.data_to_send())
    pump(lambda: len(received) >= 2 + len(word))
    assert received[:2] == bytes([0x81, len(word)]), received
    said.append(received[2:].decode())
    received = b""
print(*said)
