//! Requests that two readers could take differently: none of them reaches an origin.

use super::rig::{PROXY, Rig};
use crate::conn::Conn;

#[test]
fn nothing_ambiguous_is_passed_on() {
    let rig = Rig::new(&[]);
    for head in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
        "X: a\r\n b\r\n",
        "X: a\nY: b\r\n",
        "X: a\rY: b\r\n",
        "X : a\r\n",
        "Host: b.test\r\n",
    ] {
        for version in ["1.1", "1.0"] {
            let request = format!(
                "POST http://a.test/echo HTTP/{version}\r\nHost: a.test\r\n{head}\r\n0\r\n\r\n"
            );
            let conn = Conn::open(&rig.lab.client, PROXY, request.as_bytes());
            let (answer, _) = conn.drain();
            let answer = String::from_utf8_lossy(&answer);
            assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?}: {answer}");
            assert_eq!(
                answer.matches("HTTP/1.1 ").count(),
                1,
                "and the connection is closed"
            );
        }
    }
    let bare = "GET http://a.test/echo HTTP/1.1\nHost: a.test\n\n";
    let (answer, _) = Conn::open(&rig.lab.client, PROXY, bare.as_bytes()).drain();
    assert!(
        answer.starts_with(b"HTTP/1.1 400 "),
        "{}",
        answer.escape_ascii()
    );
    assert_eq!(
        rig.seen(),
        Vec::<String>::new(),
        "nothing reached the origin"
    );
}
