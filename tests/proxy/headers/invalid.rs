//! Invalid headers, by accident (another protocol, another dialect) or by intent: the TCP streams that the conformance corpus
//! rejects, and some that it lacks.

use serde_json::Value;

use crate::harness::addr::{FRONT_V4, fresh_client_v4};
use crate::harness::header_bytes::{PROXY, STREAM_V4, STREAM_V6, addresses, raw};

pub(super) struct InvalidHeader {
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// All invalid headers.
pub(super) fn headers() -> Vec<InvalidHeader> {
    let mut headers: Vec<InvalidHeader> = CORPUS.lines().filter_map(rejected_stream).collect();
    assert!(headers.len() > 200, "{}", headers.len());
    let block = addresses(fresh_client_v4(), FRONT_V4);
    for (name, bytes) in [
        ("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec()),
        ("v2, IPv4 without addresses", raw(PROXY, STREAM_V4, &[])),
        ("v2, IPv4 in 4 bytes", raw(PROXY, STREAM_V4, &block[..4])),
        ("v2, IPv6 in 12 bytes", raw(PROXY, STREAM_V6, &block)),
        (
            "v1, no ports",
            b"PROXY TCP4 198.51.100.7 203.0.113.1\r\n".to_vec(),
        ),
    ] {
        let name = name.to_owned();
        headers.push(InvalidHeader { name, bytes });
    }
    headers
}

fn rejected_stream(row: &str) -> Option<InvalidHeader> {
    let row: Value = serde_json::from_str(row).expect("a row");
    let is_rejected =
        row["transport"] == "tcp" && row["mode"] == "pp" && row["verdict"] == "reject";
    is_rejected.then(|| {
        let hex = row["hex"].as_str().expect("the bytes as hex");
        InvalidHeader {
            name: row["id"].as_str().expect("an id").to_owned(),
            bytes: data_encoding::HEXLOWER
                .decode(hex.as_bytes())
                .expect("lower-case hex"),
        }
    })
}

/// A JSON object a line; the `README.md` in the same directory lists the keys.
const CORPUS: &str = include_str!("../../../crates/proto/tests/proxy-protocol.jsonl");
