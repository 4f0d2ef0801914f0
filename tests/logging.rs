//! One line a connection, at its end, with who, where, how much and how; and nothing a peer can write
//! into it but text.

use serde_json::Value;

use crate::addr::{FRONT_V4, LISTEN_V4, TARGET_V4, someone_v4};
use crate::backend::Backend;
use crate::conn::Conn;
use crate::header::{tlv, v2};
use crate::lab::Lab;
use crate::peername::Peername;
use crate::rig::Rig;

#[test]
fn one_line_a_connection() {
    let rig = Rig::new(&[]);
    let client = someone_v4();
    let (down, up) = rig.connect(client);
    down.send(b"question");
    down.finish();
    up.drain();
    up.send(b"the answer");
    drop(up);
    down.drain();
    let line = connection_line(&rig.proxy);
    assert_eq!(line["client"], client.to_string());
    assert_eq!(line["peer"], down.local().to_string());
    assert_eq!(line["listener"], "10.81.0.1:8443");
    assert_eq!(line["upstream"], "127.0.0.1:9000");
    assert_eq!(line["bytes_to_upstream"], 8);
    assert_eq!(line["bytes_to_downstream"], 10);
    assert_eq!(line["outcome"], "finished");
    assert_eq!(line["fault"], "none");
}

/// Without `-v` strangers cannot fill a disk.
#[test]
fn connections_are_silent_unless_asked() {
    let lab = Lab::new();
    let args = [
        "proxy",
        "--listen=10.81.0.1:8443",
        "--trust=any",
        "--log-format=json",
    ];
    let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
    proxy.line("that it listens", |line| {
        line.contains("listening").then_some(())
    });
    let before = proxy.log();
    for _ in 0..50 {
        let conn = Conn::open(&lab.balancer, LISTEN_V4, b"nonsense");
        conn.closed();
    }
    assert_eq!(proxy.log(), before);
}

/// A name in a header comes from the client. It must not end a line, clear a screen or pose as a
/// field.
#[test]
fn what_peers_send_is_escaped() {
    let name = b"a.example\n{\"outcome\":\"finished\"}\x1b[2J\xff";
    for format in ["json", "text"] {
        let lab = Lab::new();
        let backend = Backend::listen(&lab.server, TARGET_V4);
        let line = "proxy -v --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --trust=any \
                    --log-tlv=authority --log-format";
        let args: Vec<&str> = line.split_ascii_whitespace().chain([format]).collect();
        let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
        let down = Conn::open(
            &lab.balancer,
            LISTEN_V4,
            &v2(someone_v4(), FRONT_V4, &tlv(2, name)),
        );
        drop(backend.accept());
        down.drain();
        drop(down);
        let ended = proxy.line("about the connection", |line| {
            line.contains("connection ended").then(|| line.to_owned())
        });
        assert!(
            ended.contains("=a.example%0a{%22outcome%22:%22finished%22}%1b[2J%ff"),
            "{ended}"
        );
        for line in proxy.log().lines() {
            assert!(!line.contains(char::is_control), "{line:?}");
            assert_eq!(line.starts_with('{'), format == "json", "{line}");
        }
    }
}

fn connection_line(proxy: &Peername) -> Value {
    proxy.line("about the connection", |line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        (line["message"] == "connection ended").then_some(line)
    })
}
