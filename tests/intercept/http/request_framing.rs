//! Ambiguous requests, which two readers could parse differently: one per line of `requests.jsonl`. `send`
//! has a character for each byte. Values of `verdict`:
//!
//! | verdict | the client gets | the origin |
//! |---|---|---|
//! | `refused` | one 4xx, and FIN | gets no connection |
//! | `refused_inside` | the same, behind the 200 to its CONNECT | gets no connection |
//! | `cut` | no response of the origin, and FIN | gets no whole request |
//! | `one` | the origin's answer | gets one unambiguous request |

use std::time::Duration;

use serde::Deserialize;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::WAIT_LIMIT;
use crate::harness::rig::intercept::{InterceptRig, PROXY_ADDR};
use crate::harness::strict_http;

#[test]
fn ambiguous_request_is_never_sent_on() {
    let rig = FramingRig::new();
    let rows = include_str!("requests.jsonl").lines();
    let mut failed = Vec::new();
    let mut ran = [0; 4];
    for row in rows.map(|line| serde_json::from_str::<Row>(line).expect(line)) {
        println!("{}", row.id);
        ran[row.verdict as usize] += 1;
        if let Err(why) = rig.run(row.verdict, &row.bytes(), &row.body) {
            failed.push(format!("{}: {why}", row.id));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(ran.iter().all(|rows| *rows > 0), "{ran:?}");
}

/// Cases that are too long for the table.
#[test]
fn chunk_extensions_and_trailers_are_bounded() {
    let rig = FramingRig::new();
    let head = "POST http://a.test:9001/ HTTP/1.1\r\nHost: a.test:9001\r\nTransfer-Encoding: chunked\r\n\r\n";
    let long = "a".repeat(1000);
    let trailers: String = (0..100).map(|n| format!("X-{n}: {long}\r\n")).collect();
    for body in [
        format!("3;{}\r\nabc\r\n", long.repeat(70)),
        format!("1;{long}\r\na\r\n").repeat(40),
        format!("0\r\n{trailers}"),
    ] {
        let bytes = format!("{head}{body}0\r\n\r\n");
        rig.run(Verdict::Cut, bytes.as_bytes(), "").expect("cut");
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    verdict: Verdict,
    send: String,
    /// Text that the origin must get.
    #[serde(default)]
    body: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Refused,
    RefusedInside,
    Cut,
    One,
}

impl Row {
    fn bytes(&self) -> Vec<u8> {
        let byte = |c| u8::try_from(c).unwrap_or_else(|_| panic!("{}: {c:?} is no byte", self.id));
        self.send.chars().map(byte).collect()
    }
}

/// The proxy, and an origin that records what it gets.
struct FramingRig {
    rig: InterceptRig,
    origin: Backend,
}

impl FramingRig {
    fn new() -> Self {
        let rig = InterceptRig::new(&[]);
        let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9001));
        Self { rig, origin }
    }

    fn run(&self, verdict: Verdict, bytes: &[u8], body: &str) -> Result<(), String> {
        let client = Conn::connect(&self.rig.lab.client, PROXY_ADDR);
        // A client that sends much may be cut off in the middle of it; the result is checked below.
        client.send_if_open(bytes);
        match verdict {
            Verdict::Refused => self.check_refused(&client, ""),
            Verdict::RefusedInside => self.check_refused(&client, "HTTP/1.1 200 OK\r\n"),
            Verdict::Cut => self.check_cut(&client),
            Verdict::One => self.check_one(&client, body),
        }
    }

    fn check_refused(&self, client: &Conn, before: &str) -> Result<(), String> {
        let answer = client.recv_text_to_end();
        if let Some(up) = self.origin.accept_within(AT_ONCE) {
            return Err(format!(
                "the origin got {}",
                up.recv_to_end().0.escape_ascii()
            ));
        }
        let refusal = answer
            .strip_prefix(before)
            .ok_or_else(|| format!("answered {answer:?}"))?;
        let answers = answer.matches("HTTP/1.1 ").count();
        let expected = if before.is_empty() { 1 } else { 2 };
        let is_refusal = ["HTTP/1.1 4", "HTTP/1.1 501 "]
            .iter()
            .any(|status| refusal.contains(status));
        if is_refusal && answers == expected {
            Ok(())
        } else {
            Err(format!("answered {answer:?}"))
        }
    }

    fn check_cut(&self, client: &Conn) -> Result<(), String> {
        let answer = client.recv_text_to_end();
        if answer.contains("HTTP/1.1 2") {
            return Err(format!("answered {answer:?}"));
        }
        let Some(up) = self.origin.accept_within(AT_ONCE) else {
            return Ok(());
        };
        let (got, _) = up.recv_to_end();
        let (requests, _) = strict_http::parse_requests(&got)?;
        if !requests.is_empty() {
            return Err(format!("the origin got {}", got.escape_ascii()));
        }
        self.check_no_other_connection()
    }

    fn check_one(&self, client: &Conn, body: &str) -> Result<(), String> {
        let Some(up) = self.origin.accept_within(SOON) else {
            return Err("nothing reached the origin".to_owned());
        };
        let mut got = Vec::new();
        while strict_http::parse_requests(&got)?.0.is_empty() {
            match &up.recv_some()[..] {
                [] => return Err(format!("cut: {}", got.escape_ascii())),
                more => got.extend_from_slice(more),
            }
        }
        up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwhole");
        let answer = client.recv_text_until(|text| text.contains("\r\n\r\nwhole"));
        client.shutdown_write();
        client.recv_to_end();
        got.extend(up.recv_to_end().0);
        let (requests, rest) = strict_http::parse_requests(&got)?;
        let is_one = requests.len() == 1 && rest.is_empty();
        if !is_one || !answer.contains("\r\n\r\nwhole") {
            let got = got.escape_ascii();
            return Err(format!("the origin got {got}; the client {answer:?}"));
        }
        if !String::from_utf8_lossy(&got).contains(body) {
            let got = got.escape_ascii();
            return Err(format!("the origin misses the body: {got}"));
        }
        self.check_no_other_connection()
    }

    fn check_no_other_connection(&self) -> Result<(), String> {
        match self.origin.accept_within(AT_ONCE) {
            Some(up) => Err(format!(
                "the origin also got {}",
                up.recv_to_end().0.escape_ascii()
            )),
            None => Ok(()),
        }
    }
}

/// A connection to the origin is established before the client is answered, so nothing has to be waited for.
const AT_ONCE: Duration = Duration::from_millis(1);
const SOON: Duration = WAIT_LIMIT;
