//! Makes the seeds: each message of the conformance corpus, as a file of raw bytes for each target
//! that it suits, and some answers of check services.

use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rows = fs::read_to_string(here.join("../crates/proto/tests/proxy-protocol.jsonl"))?;
    let mut written = 0;
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line)?;
        let text = |key| {
            row.get(key)
                .and_then(Value::as_str)
                .ok_or(format!("no {key} in {line}"))
        };
        let name = text("id")?.replace('/', "-");
        let message = unhex(text("hex")?)?;
        for target in if text("mode")? == "spp" { SPP } else { PROXY } {
            let folder = here.join("corpus").join(target);
            fs::create_dir_all(&folder)?;
            fs::write(folder.join(&name), &message)?;
            written += 1;
        }
    }
    let folder = here.join("corpus/check_answers");
    fs::create_dir_all(&folder)?;
    for (number, answer) in ANSWERS.iter().enumerate() {
        fs::write(folder.join(number.to_string()), answer)?;
        written += 1;
    }
    println!("{written} seeds in {}", here.join("corpus").display());
    Ok(())
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

const PROXY: &[&str] = &["parse_raw", "parse_split"];
const SPP: &[&str] = &["spp", "parse_raw"];
/// The first octet says of which protocol.
const ANSWERS: &[&[u8]] = &[
    b"\x00\x0a\x00",
    b"\x00\x0a\x02\x08\x07\x12\x10\x0a\x03\x08\x93\x03\x12\x05\x0a\x03\x0a\x01a\x1a\x02no",
    b"\x00\x0a\x00\x1a\x14\x12\x0a\x0a\x08\x0a\x03x-a\x12\x01b\x2a\x06x-gone",
    b"\x01{\"result\":true}",
    b"\x01{\"result\":{\"allow\":true,\"headers\":{\"x-a\":\"b\"},\"request_headers_to_remove\":[\"x\"]}}",
    b"\x01{\"result\":{\"allowed\":false,\"http_status\":451,\"body\":\"no\",\"reason\":\"law\"}}",
    b"\x01{}",
    b"\x02\x00\xc8x-user:alice\ncache-control:max-age=5",
    b"\x02\x01\x2elocation:/login\nset-cookie:a=b",
];
