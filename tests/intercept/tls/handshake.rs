//! The last flight of a TLS handshake: that it is sent, and coalesced with what follows.

use crate::harness::rig::intercept::InterceptRig;

/// TCP_INFO (tcp(7)) has the number of segments.
#[test]
fn origin_gets_finished_and_request_in_one_segment() {
    let rig = InterceptRig::new(&[]);
    let _origin = rig.start_python_origin(COUNTING_ORIGIN);
    assert_eq!(rig.curl(&["https://a.test:9001/"]), "1");
}

/// Otherwise the origin is not told why the handshake does not go on.
#[test]
fn refused_origin_gets_an_alert() {
    let rig = InterceptRig::new(&[]);
    let origin = rig.start_python_origin(COUNTING_ORIGIN);
    let url = "https://other.test:9001/";
    assert_eq!(rig.curl_problem(&[url])["code"], "upstream_tls_wrong_name");
    let told = origin.wait_line("the alert", |line| {
        line.strip_prefix("told ").map(str::to_owned)
    });
    assert_eq!(told, "SSLV3_ALERT_CERTIFICATE_UNKNOWN");
}

#[test]
fn client_gets_tickets_and_response_in_one_segment() {
    let said = client("tickets");
    assert_eq!(said, "nothing before the request, 1 segment, with a ticket");
}

/// A client that waits for the proxy: for its Finished in TLS 1.2, and for the SETTINGS at the start of
/// HTTP/2.
#[test]
fn client_that_only_reads_gets_the_last_flight() {
    assert_eq!(client("finished"), "TLSv1.2");
    assert_eq!(client("settings"), "SETTINGS");
}

#[test]
fn failed_client_handshake_sends_an_alert() {
    assert_eq!(client("garbage"), "alert");
}

fn client(what: &str) -> String {
    let rig = InterceptRig::new(&[]);
    let script = rig.scratch.write("flights.py", CLIENT);
    rig.run_python_client(&script, &[what]).trim().to_owned()
}

/// Answers with the number of segments that came after its own flight. The script reads the socket itself.
const COUNTING_ORIGIN: &str = r#"
import socket, ssl, struct, sys

def segments(conn):
    info = conn.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", info, 152)[0]

def serve(conn):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = tls.wrap_bio(incoming, outgoing, server_side=True)
    before = 0
    def wait_for(step):
        nonlocal before
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    before = segments(conn)
                    conn.sendall(outgoing.read())
                incoming.write(conn.recv(65536))
    try:
        wait_for(session.do_handshake)
    except ssl.SSLError as error:
        print("told", error.reason)
        return
    wait_for(lambda: session.read(65536))
    count = str(segments(conn) - before)
    session.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(count), count.encode()))
    conn.sendall(outgoing.read())

tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(*sys.argv[1:3])
listener = socket.create_server(("10.81.0.1", 9001))
while True:
    conn, _ = listener.accept()
    with conn:
        serve(conn)
"#;

const CLIENT: &str = r#"
import socket, ssl, struct, sys
host, port = sys.argv[1].split(":")
what = sys.argv[3]
tls = ssl.create_default_context(cafile=sys.argv[2])
tunnel = socket.create_connection((host, int(port)))
tunnel.settimeout(10)
tunnel.sendall(b"CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n")
assert b" 200 " in tunnel.recv(1000)

def segments():
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

if what in ("finished", "garbage"):
    tls.maximum_version = ssl.TLSVersion.TLSv1_2
if what == "settings":
    tls.set_alpn_protocols(["h2"])

if what == "garbage":
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
if what == "finished":
    print(stream.version())
if what == "settings":
    print("SETTINGS" if stream.recv(9)[3] == 4 else "something else")
if what == "tickets":
    early, before = something_comes(), segments()
    stream.sendall(b"GET /echo HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert b" 200 " in stream.recv(65536)
    ticket = "with a ticket" if stream.session.has_ticket else "without a ticket"
    early = "something" if early else "nothing"
    print(f"{early} before the request, {segments() - before} segment, {ticket}")
"#;
