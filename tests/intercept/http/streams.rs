//! Streams beyond request and response: WebSocket, gRPC, server-sent events.

use crate::harness::rig::intercept::InterceptRig;

/// An echo server of python3-websockets, and its client through CONNECT.
#[test]
fn websocket_passes_over_http1() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(WEBSOCKET_SERVER);
    let script = rig.scratch.write("client.py", WEBSOCKET_CLIENT);
    let said = rig.run_python_client(&script, &[]);
    assert_eq!(said.trim(), "one two 100000");
    let line = &rig.wait_audit_lines("/chat", 1)[0];
    assert_eq!(
        (&line["status"], &line["end"]),
        (&101.into(), &"complete".into()),
        "{line}"
    );
    assert!(line["bytes_to_upstream"].as_u64() > Some(100_000), "{line}");
}

/// The client speaks extended CONNECT (RFC 8441), the server as before.
#[test]
fn websocket_passes_over_http2() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(WEBSOCKET_SERVER);
    assert_eq!(websocket_by_http2(&rig, "/chat"), "one two");
    assert_eq!(rig.wait_audit_lines("/chat", 1)[0]["method"], "CONNECT");
}

/// What the client receives from an echo server, or the status it gets instead.
#[track_caller]
pub(crate) fn websocket_by_http2(rig: &InterceptRig, path: &str) -> String {
    let script = rig.scratch.write("client.py", HTTP2_WEBSOCKET_CLIENT);
    rig.run_python_client(&script, &[path]).trim().to_owned()
}

/// A failed upgrade is a response like any other; but 200 to a CONNECT would mean that the origin has
/// accepted it.
#[test]
fn websocket_refused_by_the_origin_is_refused() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let server = rig.start_python_origin(EVENTS_SERVER);
    assert_eq!(websocket_by_http2(&rig, "/chat"), "502");
    drop(server);
    let upgrade = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
    ];
    let headers = upgrade.iter().flat_map(|header| ["-H", header]);
    let args: Vec<_> = ["--http1.1"]
        .into_iter()
        .chain(headers)
        .chain(["https://a.test/echo"])
        .collect();
    assert!(rig.curl(&args).starts_with("GET a.test HTTP/1.1 "));
    // No other protocol is offered to the origin.
    let h2c = [
        "--http1.1",
        "-H",
        "Connection: Upgrade, HTTP2-Settings",
        "-H",
        "Upgrade: h2c",
        "-H",
        "HTTP2-Settings: AAMAAABkAAQAAP__",
        "http://a.test/echo",
    ];
    assert!(rig.curl(&h2c).starts_with("GET a.test HTTP/1.1 "));
}

/// A client of HTTP/2 sends no key, so that the proxy has to verify the acceptance.
#[test]
fn websocket_over_http2_needs_the_origins_confirmation() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(CARELESS_WEBSOCKET_SERVER);
    assert_eq!(websocket_by_http2(&rig, "/chat"), "502");
    let line = &rig.wait_audit_lines("/chat", 1)[0];
    assert!(line.to_string().contains("Sec-WebSocket-Accept"), "{line}");
}

/// Client and server of python3-grpcio: one response, a stream in both directions, and an error in trailers.
#[test]
fn grpc_passes_with_its_trailers() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(GRPC_SERVER);
    let script = rig.scratch.write("client.py", GRPC_CLIENT);
    let said = rig.run_python_client(&script, &[]);
    assert_eq!(
        said.trim(),
        "hello a,b,c StatusCode.NOT_FOUND no such thing"
    );
    let denied = rig.wait_audit_lines("/test.Echo/Fail", 1);
    assert_eq!(denied[0]["upstream"], "10.81.0.1:9001");
}

/// Each event arrives before the next one is sent: the server waits for an acknowledgement of each.
#[test]
fn server_sent_events_are_not_buffered() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(EVENTS_SERVER);
    let script = rig.scratch.write("client.py", EVENTS_CLIENT);
    let said = rig.run_python_client(&script, &[]);
    assert_eq!(said.trim(), "1 2 3");
}

/// An origin may close an idle connection in the very moment it is reused. A request without side effects is
/// retried; a POST is left to its client to retry.
#[test]
fn request_on_a_closed_idle_connection_is_retried() {
    // Each worker would have an idle connection of its own.
    let rig = InterceptRig::new(&["--workers=1", "--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(CLOSING_SERVER);
    let url = "https://a.test:9001/";
    for _ in 0..3 {
        assert_eq!(rig.curl(&["--http1.1", url]), "ok");
    }
    let post = ["--http1.1", "--data", "x", url];
    assert_eq!(rig.curl_problem(&post)["code"], "upstream_closed");
    assert_eq!(rig.curl(&post), "ok");
}

pub(crate) const WEBSOCKET_SERVER: &str = r#"
import asyncio, ssl, sys, websockets
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
async def echo(socket):
    async for message in socket:
        await socket.send(message)
async def main():
    async with websockets.serve(echo, "10.81.0.1", 9001, ssl=tls):
        await asyncio.Future()
asyncio.run(main())
"#;

/// Switches protocols whatever it is asked, with the acceptance of RFC 6455's example.
const CARELESS_WEBSOCKET_SERVER: &str = r#"
import socket, ssl, sys
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("10.81.0.1", 9001))
while True:
    connection = tls.wrap_socket(listener.accept()[0], server_side=True)
    request = b""
    while b"\r\n\r\n" not in request:
        request += connection.recv(4096)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
    connection.recv(4096)
    connection.close()
"#;

const WEBSOCKET_CLIENT: &str = r#"
import asyncio, socket, ssl, sys, websockets
host, port = sys.argv[1].split(":")
tunnel = socket.create_connection((host, int(port)))
tunnel.sendall(b"CONNECT a.test:9001 HTTP/1.1\r\nHost: a.test:9001\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)
tls = ssl.create_default_context(cafile=sys.argv[2])
async def main():
    async with websockets.connect("wss://a.test:9001/chat", sock=tunnel, ssl=tls, server_hostname="a.test", compression=None) as client:
        said = []
        for message in ["one", "two", "x" * 100000]:
            await client.send(message)
            said.append(await client.recv())
        print(said[0], said[1], len(said[2]))
asyncio.run(main())
"#;

const HTTP2_WEBSOCKET_CLIENT: &str = r#"
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
"#;

const GRPC_SERVER: &str = r#"
import sys
from concurrent import futures
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, call):
        def hello(request, context):
            return request
        def both(requests, context):
            yield from requests
        def fail(request, context):
            context.abort(grpc.StatusCode.NOT_FOUND, "no such thing")
        return {
            "/test.Echo/Hello": grpc.unary_unary_rpc_method_handler(hello),
            "/test.Echo/Both": grpc.stream_stream_rpc_method_handler(both),
            "/test.Echo/Fail": grpc.unary_unary_rpc_method_handler(fail),
        }.get(call.method)

chain, key = (open(path, "rb").read() for path in sys.argv[1:3])
server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()])
server.add_secure_port("10.81.0.1:9001", grpc.ssl_server_credentials([(key, chain)]))
server.start()
server.wait_for_termination()
"#;

const GRPC_CLIENT: &str = r#"
import os, sys
os.environ["https_proxy"] = os.environ["http_proxy"] = "http://" + sys.argv[1]
import grpc
credentials = grpc.ssl_channel_credentials(open(sys.argv[2], "rb").read())
with grpc.secure_channel("a.test:9001", credentials) as channel:
    hello = channel.unary_unary("/test.Echo/Hello")(b"hello", timeout=10).decode()
    both = channel.stream_stream("/test.Echo/Both")(iter([b"a", b"b", b"c"]), timeout=10)
    both = b",".join(both).decode()
    try:
        channel.unary_unary("/test.Echo/Fail")(b"", timeout=10)
    except grpc.RpcError as error:
        print(hello, both, error.code(), error.details())
"#;

const CLOSING_SERVER: &str = r#"
import socket, ssl, sys, threading
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])

def serve(plain):
    with tls.wrap_socket(plain, server_side=True) as stream:
        stream.recv(65536)
        stream.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        stream.recv(65536)

listener = socket.create_server(("10.81.0.1", 9001))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

const EVENTS_SERVER: &str = r#"
import ssl, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
seen = threading.Semaphore(0)

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"1", b"2", b"3"):
            self.wfile.write(b"9\r\ndata: " + event + b"\n\n\r\n")
            assert seen.acquire(timeout=10), "the client has not seen it"
        self.wfile.write(b"0\r\n\r\n")
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
        seen.release()

server = ThreadingHTTPServer(("10.81.0.1", 9001), Handler)
tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = tls.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

const EVENTS_CLIENT: &str = r#"
import http.client, ssl, sys
host, port = sys.argv[1].split(":")
tls = ssl.create_default_context(cafile=sys.argv[2])

def connect():
    connection = http.client.HTTPSConnection(host, int(port), context=tls, timeout=10)
    connection.set_tunnel("a.test", 9001)
    return connection

events = connect()
events.request("GET", "/events")
answer = events.getresponse()
words = connect()
said = []
for _ in range(3):
    said.append(answer.readline().split()[1].decode())
    assert answer.readline() == b"\n"
    words.request("POST", "/seen", body=b"")
    words.getresponse().read()
assert answer.read() == b""
print(*said)
"#;
