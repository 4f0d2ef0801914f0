//! Programs that people run, as Debian ships them, behind the balancers that people run.

use std::net::SocketAddr;

use super::rig::{Program, pseudo, v1, v2};
use crate::addr::{CLIENT_V4, CLIENT_V6, FRONT_V4, FRONT_V6, LISTEN_V4, someone_v4, someone_v6};
use crate::conn::Conn;
use crate::sender::{Haproxy, NginxStream, curl};

/// Behind HAProxy, and from raw headers of both versions: every answer holds the client's address.
fn sees_the_client(
    program: &Program,
    request: &[u8],
    address: impl Fn(&str) -> Option<SocketAddr>,
) {
    let ask = |conn: Conn, header: &[u8]| {
        conn.send(&[header, request].concat());
        let said = conn.recv_text_until(|said| address(said).is_some());
        address(&said).unwrap_or_else(|| panic!("{said:?}\n{}", program.process.log()))
    };
    let raw = || Conn::connect(&program.lab.balancer, LISTEN_V4);
    for header in [v1, v2] {
        let client = someone_v4();
        assert_eq!(ask(raw(), &header(client)), client);
    }
    let client = someone_v6();
    assert_eq!(ask(raw(), &v2(client)), stands_in(client));
    let _haproxy = Haproxy::start(&program.lab, LISTEN_V4, "send-proxy-v2");
    let through = |front| Conn::connect(&program.lab.client, front);
    assert_eq!(ask(through(FRONT_V4), b""), CLIENT_V4);
    assert_eq!(ask(through(FRONT_V6), b""), stands_in(CLIENT_V6));
}

/// What an IPv4 socket shows.
fn stands_in(client: SocketAddr) -> SocketAddr {
    match client {
        SocketAddr::V6(v6) => (pseudo(*v6.ip()), v6.port()).into(),
        SocketAddr::V4(_) => client,
    }
}

/// `ADDRESS PORT`, or `ADDRESS:PORT`, somewhere in a line.
fn anywhere(text: &str) -> Option<SocketAddr> {
    text.lines()
        .filter(|line| line.starts_with("peer "))
        .find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["peer", ip, port] => crate::addr::parse(ip, port.trim()),
                _ => None,
            }
        })
}

#[test]
fn python() {
    let program = Program::start(&["/usr/bin/python3", "-uc", PYTHON]);
    sees_the_client(&program, b"GET / HTTP/1.0\r\n\r\n", anywhere);
}

#[test]
fn node() {
    let program = Program::start(&["node", "-e", NODE]);
    sees_the_client(&program, b"hello\n", anywhere);
}

#[test]
fn redis() {
    let line = "redis-server --bind 10.81.0.1 --port 8443 --appendonly no --protected-mode no";
    let program = Program::start(&line.split(' ').collect::<Vec<_>>());
    sees_the_client(&program, b"CLIENT INFO\r\n", |said| {
        let word = said.split(' ').find_map(|word| word.strip_prefix("addr="));
        word.and_then(|addr| addr.parse().ok())
    });
}

#[test]
fn socat() {
    let listen = "TCP4-LISTEN:8443,bind=10.81.0.1,reuseaddr,fork";
    let answer = "SYSTEM:echo peer $SOCAT_PEERADDR $SOCAT_PEERPORT";
    let program = Program::start(&["socat", listen, answer]);
    // echo would not read a request, and socat then drops the answer.
    sees_the_client(&program, b"", anywhere);
}

#[test]
fn netcat() {
    let program = Program::start(&["nc.openbsd", "-lnvk", "10.81.0.1", "8443"]);
    let client = someone_v4();
    let conn = Conn::open(&program.lab.balancer, LISTEN_V4, &v2(client));
    conn.send(b"hello");
    let line = format!("Connection received on {} {}", client.ip(), client.port());
    program
        .process
        .line(&line, |said| said.contains(&line).then_some(()));
}

#[test]
fn erlang() {
    let program = Program::start(&["erl", "-noshell", "-eval", ERLANG]);
    sees_the_client(&program, b"hello\n", anywhere);
}

#[test]
fn java() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/exec/Server.java");
    // It would listen on an IPv6 socket otherwise.
    let v4 = "-Djava.net.preferIPv4Stack=true";
    let program = Program::start(&["java", "-XX:TieredStopAtLevel=1", v4, source]);
    sees_the_client(&program, b"hello\n", anywhere);
}

/// curl makes its header from its own end of the connection.
#[test]
fn curl_and_nginx_in_front() {
    let program = Program::start(&["/usr/bin/python3", "-uc", PYTHON]);
    let claimed = curl(&program.lab, LISTEN_V4);
    program.process.line("of curl", |line| {
        (anywhere(line) == Some(claimed)).then_some(())
    });
    let _nginx = NginxStream::start(&program.lab, LISTEN_V4);
    let conn = Conn::open(&program.lab.client, FRONT_V4, b"GET / HTTP/1.0\r\n\r\n");
    let said = conn.recv_text_until(|said| anywhere(said).is_some());
    assert_eq!(anywhere(&said), Some(CLIENT_V4), "{said}");
}

const PYTHON: &str = r#"
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Hello(BaseHTTPRequestHandler):
    def do_GET(self):
        line = "peer %s %d" % self.request.getpeername()
        assert self.request.getpeername() == self.client_address
        print(line)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(line.encode() + b"\n")
ThreadingHTTPServer(("10.81.0.1", 8443), Hello).serve_forever()
"#;

const NODE: &str = r#"
require("net").createServer(socket => {
    socket.on("error", () => {});
    socket.end(`peer ${socket.remoteAddress} ${socket.remotePort}\n`);
}).listen({ host: "10.81.0.1", port: 8443 });
"#;

const ERLANG: &str = r#"
{ok, L} = gen_tcp:listen(8443, [{ip, {10,81,0,1}}, binary, {active, false}, {reuseaddr, true}]),
F = fun(F) ->
    {ok, S} = gen_tcp:accept(L),
    {ok, {A, P}} = inet:peername(S),
    gen_tcp:send(S, io_lib:format("peer ~s ~b~n", [inet:ntoa(A), P])),
    gen_tcp:recv(S, 0, 1000),
    gen_tcp:close(S),
    F(F) end,
F(F).
"#;
