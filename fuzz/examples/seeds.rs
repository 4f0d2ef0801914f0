//! Generates the seeds: each message of the conformance corpus, as a file of raw bytes for each target that parses it;
//! responses of check services; first bytes of connections, requests, and host names.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::Value;

fn main() -> Result<(), Box<dyn Error>> {
    let written = write_header_seeds()? + write_intercept_seeds()?;
    println!("{written} seeds in {}", repository("fuzz/corpus").display());
    Ok(())
}

/// Writes the messages of the conformance corpus for the parsers of headers, and returns how many.
fn write_header_seeds() -> Result<usize, Box<dyn Error>> {
    let rows = fs::read_to_string(repository("crates/proto/tests/proxy-protocol.jsonl"))?;
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
        let targets = if text("mode")? == "spp" {
            SPP_TARGETS
        } else {
            PROXY_TARGETS
        };
        for target in targets {
            write_seed(target, &name, &message)?;
            written += 1;
        }
    }
    Ok(written)
}

/// Writes the seeds for the parsers of `intercept`, and returns how many.
fn write_intercept_seeds() -> Result<usize, Box<dyn Error>> {
    let requests = fs::read_to_string(repository("tests/intercept/http/requests.jsonl"))?;
    let requests: Vec<_> = requests
        .lines()
        .map(request_bytes)
        .collect::<Result<_, _>>()?;
    let hosts: Vec<_> = HOSTS.iter().map(|host| host.as_bytes().to_vec()).collect();
    let answers = ANSWERS.iter().map(|answer| answer.to_vec()).collect();
    let hellos = [
        client_hello("a.test", &["h2", "http/1.1"])?,
        client_hello("192.0.2.1", &[])?,
    ];
    let first_bytes = hellos
        .into_iter()
        .chain(requests.iter().take(4).cloned())
        .collect();
    let mut written = 0;
    for (target, seeds) in [
        ("check_answers", answers),
        ("request_head", requests),
        ("hello", first_bytes),
        ("host", hosts.clone()),
        ("mint", hosts),
    ] {
        for (number, seed) in seeds.iter().enumerate() {
            write_seed(target, &number.to_string(), seed)?;
            written += 1;
        }
    }
    Ok(written)
}

fn write_seed(target: &str, name: &str, seed: &[u8]) -> io::Result<()> {
    let folder = repository("fuzz/corpus").join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), seed)
}

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Decodes a row into the bytes of its requests, without a CONNECT before them. Each character of the row's text is a byte.
fn request_bytes(line: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let row: Value = serde_json::from_str(line)?;
    let text = row["send"].as_str().ok_or(format!("no send in {line}"))?;
    let inside = text
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split_once("\r\n\r\n"));
    let text = inside.map_or(text, |(_, inside)| inside);
    Ok(text.chars().map(u8::try_from).collect::<Result<_, _>>()?)
}

fn client_hello(name: &str, alpn: &[&str]) -> Result<Vec<u8>, Box<dyn Error>> {
    let roots = RootCertStore::empty();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn
        .iter()
        .map(|protocol| protocol.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from(name.to_owned())?;
    let mut bytes = Vec::new();
    ClientConnection::new(Arc::new(config), name)?.write_tls(&mut bytes)?;
    Ok(bytes)
}

fn unhex(text: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?))
        .collect()
}

const PROXY_TARGETS: &[&str] = &["parse_raw", "parse_split"];
const SPP_TARGETS: &[&str] = &["spp", "parse_raw"];
const HOSTS: &[&str] = &[
    "a.test",
    "A.Test.:443",
    "xn--bcher-kva.example",
    "_x.a-b.test",
    "corp.test",
    "x.corp.test:8443",
    "192.0.2.1:443",
    "[2001:db8::1]:443",
    "::ffff:192.0.2.1",
    "127.1",
    "0x7f.1",
    "2130706433",
    "a.0x1",
    "user@a.test",
    "[fe80::1%eth0]",
    "*.a.test",
    "a..b",
    "-a.test",
];
/// Responses of check services. The first byte selects the protocol: ext_authz, OPA or forwardAuth.
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
