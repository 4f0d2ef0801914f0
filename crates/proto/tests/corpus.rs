//! Runs the conformance corpus, see README.md in this folder.

use std::collections::BTreeMap;
use std::fmt::Debug;

use peername_proto::{Carrier, Command, Endpoints, Header, Parsed, Spp, Transport, Version, parse};
use serde::Deserialize;

#[test]
fn every_row_has_the_expected_verdict() {
    let expected = [("accept", 178), ("need_more", 117), ("reject", 282)];
    check_rows(rows(), Row::run, expected);
}

#[test]
fn every_stream_parses_the_same_at_every_split() {
    let streams = rows().filter(|row| row.transport == "tcp");
    let expected = [("accept", 161), ("need_more", 117), ("reject", 226)];
    check_rows(streams, Row::run_splits, expected);
}

/// Checks each row, and that the corpus has the expected number of rows of each verdict.
fn check_rows(rows: impl Iterator<Item = Row>, check: fn(&Row), expected: [(&str, usize); 3]) {
    let mut checked = BTreeMap::new();
    for row in rows {
        check(&row);
        *checked.entry(row.verdict).or_insert(0) += 1;
    }
    let expected = expected.map(|(verdict, rows)| (verdict.to_owned(), rows));
    assert_eq!(checked, BTreeMap::from(expected));
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: String,
    hex: String,
    transport: String,
    mode: String,
    verdict: String,
    version: Option<u8>,
    command: Option<String>,
    family: Option<String>,
    src: Option<String>,
    dst: Option<String>,
    header_len: Option<usize>,
    payload_hex: Option<String>,
    tlvs: Option<Vec<(u8, String)>>,
    ssl: Option<SslRow>,
    #[serde(rename = "requires", default)]
    _requires: Vec<String>,
    #[serde(rename = "contested", default)]
    _contested: bool,
    #[serde(rename = "also_ok", default)]
    _also_ok: Vec<String>,
    #[serde(rename = "note", default)]
    _note: String,
    #[serde(rename = "origin")]
    _origin: String,
    #[serde(rename = "spec")]
    _spec: String,
    #[serde(rename = "role", default)]
    _role: String,
}

#[derive(Deserialize)]
struct SslRow {
    client: u8,
    verify: u32,
    subs: Vec<(u8, String)>,
}

impl Row {
    fn run(&self) {
        let bytes = unhex(&self.hex);
        match self.mode.as_str() {
            "pp" => self.run_proxy(&bytes),
            "spp" => self.run_spp(&bytes),
            mode => panic!("{}: unknown mode {mode}", self.id),
        }
    }

    fn run_proxy(&self, bytes: &[u8]) {
        match (self.verdict.as_str(), parse(bytes, self.carrier())) {
            ("accept", Ok(Parsed::Complete(header))) => self.compare(bytes, &header),
            ("need_more", Ok(Parsed::NeedMore(need))) => {
                assert!(need > bytes.len(), "{}: {need}", self.id);
            }
            ("reject", Err(_)) => {}
            (verdict, got) => panic!("{}: expected {verdict}, got {got:?}", self.id),
        }
    }

    fn compare(&self, bytes: &[u8], header: &Header<'_>) {
        let version = match header.version {
            Version::V1 => 1,
            Version::V2 => 2,
        };
        let (family, src, dst) = describe_endpoints(header);
        self.assert_same("version", self.version, Some(version));
        self.assert_same(
            "command",
            self.command.as_deref(),
            Some(command_name(header.command)),
        );
        self.assert_same("family", self.family.as_deref(), family);
        self.assert_same("src", self.src.clone(), src);
        self.assert_same("dst", self.dst.clone(), dst);
        self.assert_same("header_len", self.header_len, Some(header.len));
        self.assert_same(
            "payload",
            self.payload_hex.clone(),
            Some(hex(&bytes[header.len..])),
        );
        self.compare_tlvs(header);
    }

    fn compare_tlvs(&self, header: &Header<'_>) {
        let pairs = |tlvs: peername_proto::Tlvs<'_>| -> Vec<_> {
            tlvs.iter().map(|tlv| (tlv.kind, hex(tlv.value))).collect()
        };
        self.assert_same(
            "tlvs",
            self.tlvs.clone().unwrap_or_default(),
            pairs(header.tlvs),
        );
        if let Some(expected) = &self.ssl {
            let ssl = header
                .tlvs
                .ssl()
                .unwrap_or_else(|| panic!("{}: no SSL", self.id));
            self.assert_same("ssl.client", expected.client, ssl.client);
            self.assert_same("ssl.verify", expected.verify, ssl.verify);
            self.assert_same("ssl.subs", expected.subs.clone(), pairs(ssl.tlvs));
        }
    }

    fn run_spp(&self, bytes: &[u8]) {
        match (self.verdict.as_str(), Spp::parse(bytes)) {
            ("accept", Ok(header)) => self.compare_spp(bytes, header),
            ("reject", Err(_)) => {}
            (verdict, got) => panic!("{}: expected {verdict}, got {got:?}", self.id),
        }
    }

    fn compare_spp(&self, bytes: &[u8], header: Spp) {
        let family = if header.client.is_ipv4() {
            "udp4"
        } else {
            "udp6"
        };
        self.assert_same("command", self.command.as_deref(), Some("proxy"));
        self.assert_same("family", self.family.as_deref(), Some(family));
        self.assert_same("src", self.src.clone(), Some(header.client.to_string()));
        self.assert_same("dst", self.dst.clone(), Some(header.proxy.to_string()));
        self.assert_same("header_len", self.header_len, Some(Spp::LEN));
        self.assert_same(
            "payload",
            self.payload_hex.clone(),
            Some(hex(&bytes[Spp::LEN..])),
        );
        self.assert_same("written", &bytes[..Spp::LEN], &header.to_bytes());
    }

    /// Parsing a prefix must ask for more bytes, but for none beyond the header, or return the result of the whole input.
    fn run_splits(&self) {
        let bytes = unhex(&self.hex);
        let whole = parse(&bytes, Carrier::Stream);
        for end in 0..bytes.len() {
            let prefix = parse(&bytes[..end], Carrier::Stream);
            if let Ok(Parsed::NeedMore(need)) = prefix {
                assert!(need > end, "{}: asks for {need} at {end}", self.id);
                if let Ok(Parsed::Complete(header)) = whole {
                    assert!(end < header.len, "{}: not accepted at {end}", self.id);
                    assert!(
                        need <= header.len,
                        "{}: {need} at {end} reads too far",
                        self.id
                    );
                }
            } else {
                assert_eq!(prefix, whole, "{}: at {end}", self.id);
            }
        }
    }

    fn carrier(&self) -> Carrier {
        match self.transport.as_str() {
            "tcp" => Carrier::Stream,
            "udp" => Carrier::Datagram,
            transport => panic!("{}: unknown transport {transport}", self.id),
        }
    }

    fn assert_same<T: PartialEq + Debug>(&self, what: &str, expected: T, got: T) {
        assert_eq!(expected, got, "{}: {what} (left: corpus)", self.id);
    }
}

fn describe_endpoints(
    header: &Header<'_>,
) -> (Option<&'static str>, Option<String>, Option<String>) {
    use Transport::{Datagram, Stream};
    match header.endpoints {
        Endpoints::Real if header.command == Command::Local => (None, None, None),
        Endpoints::Real => (Some("unspec"), None, None),
        Endpoints::Inet {
            transport,
            source,
            destination,
        } => {
            let family = match (transport, source.is_ipv4()) {
                (Stream, true) => "tcp4",
                (Stream, false) => "tcp6",
                (Datagram, true) => "udp4",
                (Datagram, false) => "udp6",
            };
            (
                Some(family),
                Some(source.to_string()),
                Some(destination.to_string()),
            )
        }
        Endpoints::Unix {
            transport,
            source,
            destination,
        } => {
            let family = if transport == Stream {
                "unix-stream"
            } else {
                "unix-dgram"
            };
            (
                Some(family),
                Some(source.to_string()),
                Some(destination.to_string()),
            )
        }
    }
}

fn command_name(command: Command) -> &'static str {
    match command {
        Command::Proxy => "proxy",
        Command::Local => "local",
        Command::Unknown => "unknown",
    }
}

fn rows() -> impl Iterator<Item = Row> {
    include_str!("proxy-protocol.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |c: u8| char::from(c).to_digit(16).unwrap() as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
