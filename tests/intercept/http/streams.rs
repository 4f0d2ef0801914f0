//! Streams beyond request and response: WebSocket, gRPC, server-sent events.

use serde_json::json;

use crate::harness::lab::assert_fields;
use crate::harness::rig::intercept::{InterceptRig, WEBSOCKET_SERVER};

/// An echo server of python3-websockets, and its client through CONNECT.
#[test]
fn websocket_passes_over_http1() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(WEBSOCKET_SERVER);
    let printed = rig.run_python_client(WEBSOCKET_CLIENT, &["/chat"]);
    assert_eq!(printed, "one two 100000");
    let line = &rig.wait_audit_lines("/chat", 1)[0];
    assert_fields(line, json!({"status": 101, "end": "complete"}));
    assert!(line["bytes_to_upstream"].as_u64() > Some(100_000), "{line}");
    // The audit line names the side that has cut the connection.
    assert_eq!(rig.run_python_client(WEBSOCKET_CLIENT, &["/cut"]), "closed");
    let line = &rig.wait_audit_lines("/cut", 1)[0];
    assert_eq!(line["end"], "cut_by_origin", "{line}");
}

/// The client uses extended CONNECT (RFC 8441), and the server the upgrade of HTTP/1.1.
#[test]
fn websocket_passes_over_http2() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(WEBSOCKET_SERVER);
    assert_eq!(rig.websocket_over_http2("/chat"), "one two");
    assert_eq!(rig.wait_audit_lines("/chat", 1)[0]["method"], "CONNECT");
}

/// Over HTTP/1.1 a failed upgrade is a response like any other. Over HTTP/2 it is a 502, because 200 to a CONNECT would mean
/// that the origin has accepted it.
#[test]
fn websocket_refused_by_the_origin_is_refused() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let server = rig.start_python_origin(EVENTS_SERVER);
    assert_eq!(rig.websocket_over_http2("/chat"), "502");
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

/// A client of HTTP/2 sends no key, so the proxy sends one and verifies Sec-WebSocket-Accept.
#[test]
fn websocket_over_http2_needs_the_origins_confirmation() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(CARELESS_WEBSOCKET_SERVER);
    assert_eq!(rig.websocket_over_http2("/chat"), "502");
    let line = &rig.wait_audit_lines("/chat", 1)[0];
    assert!(line.to_string().contains("Sec-WebSocket-Accept"), "{line}");
}

/// Client and server of python3-grpcio: one response, a stream in both directions, and an error in trailers.
#[test]
fn grpc_passes_with_its_trailers() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(GRPC_SERVER);
    let printed = rig.run_python_client(GRPC_CLIENT, &[]);
    assert_eq!(printed, "hello a,b,c StatusCode.NOT_FOUND no such thing");
    let failed = rig.wait_audit_lines("/test.Echo/Fail", 1);
    assert_eq!(failed[0]["upstream"], "10.81.0.1:9001");
}

/// Each event arrives before the next one is sent: the server waits for an acknowledgement of each.
#[test]
fn server_sent_events_are_not_buffered() {
    let rig = InterceptRig::new(&["--allow-destination=10.81.0.1:9001"]);
    let _server = rig.start_python_origin(EVENTS_SERVER);
    assert_eq!(rig.run_python_client(EVENTS_CLIENT, &[]), "1 2 3");
}

/// Switches protocols whatever the request is, with the Sec-WebSocket-Accept of RFC 6455's example.
const CARELESS_WEBSOCKET_SERVER: &str = include_str!("streams/careless_websocket_server.py");

const WEBSOCKET_CLIENT: &str = include_str!("streams/websocket_client.py");

const GRPC_SERVER: &str = include_str!("streams/grpc_server.py");

const GRPC_CLIENT: &str = include_str!("streams/grpc_client.py");

const EVENTS_SERVER: &str = include_str!("streams/events_server.py");

const EVENTS_CLIENT: &str = include_str!("streams/events_client.py");
