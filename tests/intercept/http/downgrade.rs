//! Downgrade: HTTP/2 requests for an origin that speaks HTTP/1.1 only, one per line of `downgrade.jsonl`.
//! HTTP/2 delimits by frames, HTTP/1.1 by text, so request smuggling would happen here (RFC 9113, section
//! 10.3). Values of `verdict`:
//!
//! | verdict | the client gets | the origin |
//! |---|---|---|
//! | `one` | the origin's answer | gets one unambiguous request, with `has` and without `lacks` |
//! | `refused` | 4xx, or 501 to CONNECT | gets no connection |
//! | `reset` | RST_STREAM or GOAWAY | gets no connection |
//! | `cut` | RST_STREAM, or no answer of the origin's | gets no whole request |

use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::harness::addr::v4;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Process, lossy_text};
use crate::harness::rig::intercept::InterceptRig;
use crate::harness::strict_http;

#[test]
fn http2_request_never_becomes_ambiguous_http1() {
    let rig = DowngradeRig::new();
    let rows: Vec<Row> = include_str!("downgrade.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let failed: Vec<_> = rows
        .iter()
        .filter_map(|row| Some(format!("{}: {}", row.id, rig.run(row).err()?)))
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let ran = |verdict| rows.iter().any(|row| row.verdict == verdict);
    assert!(
        [Verdict::One, Verdict::Refused, Verdict::Reset, Verdict::Cut]
            .into_iter()
            .all(ran)
    );
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    verdict: Verdict,
    /// The request that the client sends.
    send: Value,
    /// Text that the origin must get.
    #[serde(default)]
    has: Vec<String>,
    /// Text that the origin must not get, in any case of letters.
    #[serde(default)]
    lacks: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    One,
    Refused,
    Reset,
    Cut,
}

/// The client's result.
#[derive(Debug, Deserialize)]
struct Seen {
    status: Option<u16>,
    body: String,
    end: String,
}

/// The proxy, and an origin that records what it gets. socat terminates TLS for it.
struct DowngradeRig {
    rig: InterceptRig,
    _tls: Process,
    origin: Backend,
}

impl DowngradeRig {
    fn new() -> Self {
        let rig = InterceptRig::new(&[]);
        rig.scratch.write("frames.py", include_str!("frames.py"));
        let origin = Backend::listen(&rig.lab.server, v4([10, 81, 0, 1], 9002));
        let [pem, key] = ["origin.pem", "origin.key"].map(|name| rig.scratch.path_text(name));
        let listen = format!(
            "OPENSSL-LISTEN:9001,bind=10.81.0.1,reuseaddr,fork,cert={pem},key={key},verify=0"
        );
        let args = ["-t", "5", &listen, "TCP:10.81.0.1:9002"];
        let tls = Process::start_in_pid_namespace(&rig.lab.server, "socat", &args);
        let _tls = tls.wait_listening(&[v4([10, 81, 0, 1], 9001)]);
        Self { rig, _tls, origin }
    }

    fn run(&self, row: &Row) -> Result<(), String> {
        let (seen, received) = self.exchange(&row.send);
        let describe = || {
            let received: Vec<_> = received
                .iter()
                .map(|bytes| bytes.escape_ascii().to_string())
                .collect();
            format!("the client {seen:?}, the origin {received:?}")
        };
        let mut whole = 0;
        for bytes in &received {
            let (requests, rest) = strict_http::parse_requests(bytes)
                .map_err(|why| format!("{why}: {}", describe()))?;
            whole += requests.len();
            if !requests.is_empty() && !rest.is_empty() {
                return Err(format!("more than a request: {}", describe()));
            }
        }
        let text = lossy_text(&received.concat());
        let lower = text.to_ascii_lowercase();
        let ended = seen.status.is_none() && seen.end != "complete";
        let fits = match row.verdict {
            Verdict::One => whole == 1 && seen.status == Some(200) && seen.body == "whole",
            Verdict::Refused => text.is_empty() && matches!(seen.status, Some(400..=499 | 501)),
            Verdict::Reset => text.is_empty() && ended,
            Verdict::Cut => whole == 0 && (ended || seen.status != Some(200)),
        };
        let has_all = row.has.iter().all(|part| text.contains(part));
        let lacks_all = !row.lacks.iter().any(|part| lower.contains(part));
        if fits && has_all && lacks_all {
            Ok(())
        } else {
            Err(describe())
        }
    }

    /// Sends a request; returns what the client saw, and what the origin received on each connection.
    fn exchange(&self, send: &Value) -> (Seen, Vec<Vec<u8>>) {
        let send = send.to_string();
        thread::scope(|scope| {
            let client = scope.spawn(|| self.rig.run_python_client(CLIENT, &[&send]));
            let mut received = Vec::new();
            loop {
                // Whatever the request causes happens soon after it has ended.
                let is_over = client.is_finished();
                match self.origin.accept_within(SOON) {
                    Some(up) => received.push(serve(&up)),
                    None if is_over => break,
                    None => {}
                }
            }
            let seen = client.join().expect("what the client saw");
            (serde_json::from_str(&seen).expect("JSON"), received)
        })
    }
}

/// Answers once a whole request has come, or bytes that are no request; returns everything that came.
fn serve(up: &Conn) -> Vec<u8> {
    let mut got = Vec::new();
    while strict_http::parse_requests(&got).is_ok_and(|(all, _)| all.is_empty()) {
        match &up.recv_some()[..] {
            [] => return got,
            more => got.extend_from_slice(more),
        }
    }
    up.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nwhole");
    up.shutdown_write();
    got.extend(up.recv_to_end().0);
    got
}

const CLIENT: &str = include_str!("downgrade.py");
const SOON: Duration = Duration::from_millis(50);
