use std::io::{BufReader, Read};

use data_encoding::HEXLOWER;
use peername_proto::Carrier;
use serde_json::Value;

use super::*;

const STREAM: MessageFormat = MessageFormat::Proxy(Carrier::Stream);
const DATAGRAM: MessageFormat = MessageFormat::Proxy(Carrier::Datagram);

/// The codec's tests have the same corpus. Here the messages of one format are the lines of one input.
#[test]
fn corpus_is_decoded_as_expected() {
    let corpus: Vec<Value> = include_str!("../../../../proto/tests/proxy-protocol.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut compared = 0;
    for (transport, mode, format) in [
        ("tcp", "pp", STREAM),
        ("udp", "pp", DATAGRAM),
        ("udp", "spp", MessageFormat::Spp),
    ] {
        let rows: Vec<_> = corpus
            .iter()
            .filter(|row| row["transport"] == transport && row["mode"] == mode)
            .collect();
        let input: String = rows
            .iter()
            .map(|row| format!("{}\n", row["hex"].as_str().unwrap()))
            .collect();
        let (output, all_accepted) = decoded_lines(&input, format);
        assert!(!all_accepted);
        assert_eq!(output.len(), rows.len());
        for (row, got) in rows.iter().zip(&output) {
            assert_report(row, got);
        }
        compared += rows.len();
    }
    assert_eq!(compared, corpus.len());
}

/// Compares a report with a row of the corpus.
fn assert_report(row: &Value, got: &Value) {
    let id = &row["id"];
    for key in [
        "verdict",
        "version",
        "command",
        "family",
        "src",
        "dst",
        "header_len",
    ] {
        assert_eq!(row[key], got[key], "{id}: {key}");
    }
    let tlvs = got["tlvs"].as_array().map_or(Value::Null, |fields| {
        fields
            .iter()
            .map(|field| serde_json::json!([field["type"], field["hex"]]))
            .collect()
    });
    assert_eq!(row["tlvs"], tlvs, "{id}: tlvs");
    assert_eq!(
        got["error"].is_null(),
        row["verdict"] == "accept",
        "{id}: error"
    );
}

#[test]
fn output_has_the_documented_keys_and_names() {
    let header = "0d0a0d0a000d0a515549540a2111001bc000020ac6336414dc0401bb\
                  0100026832ea000701767063652d31";
    assert_eq!(
        output_text(header, STREAM),
        concat!(
            r#"{"verdict":"accept","version":2,"command":"proxy","family":"tcp4","#,
            r#""src":"192.0.2.10:56324","dst":"198.51.100.20:443","header_len":43,"#,
            r#""tlvs":[{"type":1,"name":"ALPN","hex":"6832"},"#,
            r#"{"type":234,"name":"AWS_VPCE_ID","hex":"01767063652d31"}],"error":null}"#,
            "\n"
        )
    );
}

#[test]
fn payload_behind_the_header_is_ignored() {
    let (output, all_accepted) = decoded(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET /", STREAM);
    assert!(all_accepted);
    assert_eq!(output["src"], "192.0.2.1:1");
    assert_eq!(output["header_len"], 36);
    assert_eq!(output["tlvs"], Value::Null);
}

#[test]
fn other_protocol_is_named_in_the_error() {
    let (output, all_accepted) = decoded(b"GET / HTTP/1.1\r\n", STREAM);
    assert!(!all_accepted);
    let error = output["error"].as_str().unwrap();
    assert!(error.contains("byte 0") && error.ends_with("(it looks like an HTTP/1 request)"));
    let (output, _) = decoded(b"PROXY UNKNOWN\r\n", MessageFormat::Spp);
    assert!(output["error"].as_str().unwrap().contains("version 1"));
}

#[test]
fn bad_hex_rejects_its_line_only() {
    let good = HEXLOWER.encode(b"PROXY UNKNOWN\r\n");
    let input = format!(
        "{good}\nzz\n5\n{good} {good}\n\n  {}\t\r\n{good}",
        good.to_uppercase()
    );
    let (output, all_accepted) = decoded_lines(&input, STREAM);
    let verdicts: Vec<_> = output
        .iter()
        .map(|line| line["verdict"].as_str().unwrap())
        .collect();
    let expected = [
        "accept",
        "reject",
        "reject",
        "reject",
        "need_more",
        "accept",
        "accept",
    ];
    assert_eq!(verdicts, expected);
    assert!(!all_accepted);
    let errors: Vec<_> = output[1..4]
        .iter()
        .map(|line| line["error"].as_str().unwrap())
        .collect();
    assert!(errors[0].contains("column 1"), "{}", errors[0]);
    assert!(errors[1].contains("odd"), "{}", errors[1]);
    assert!(errors[2].contains("column 31"), "{}", errors[2]);
}

#[test]
fn empty_input_is_an_empty_message() {
    let (raw, is_accepted) = decoded(b"", STREAM);
    assert!(!is_accepted);
    assert_eq!(decoded_lines("", STREAM), (vec![raw], false));
}

#[test]
fn hex_without_the_option_is_named_in_the_error() {
    let text = HEXLOWER.encode(b"PROXY UNKNOWN\r\n");
    let (output, _) = decoded(text.as_bytes(), STREAM);
    let error = output["error"].as_str().unwrap();
    assert!(error.ends_with("(it looks like hex: add --hex)"), "{error}");
}

#[test]
fn endless_message_is_read_in_bounded_memory() {
    let endless = || {
        HEXLOWER
            .encode(b"PROXY UNKNOWN\r\n")
            .into_bytes()
            .chain_zeroes(1 << 24)
    };
    let mut output = Vec::new();
    assert!(decode_hex_lines(BufReader::new(endless()), &mut output, STREAM).unwrap());
    assert_eq!(output.iter().filter(|&&byte| byte == b'\n').count(), 1);
    let line = [b'0'; MAX_LINE_LEN];
    assert_eq!(parse_hex(&line).unwrap().len(), MAX_MESSAGE_LEN);
    let mut rest = b"PROXY UNKNOWN\r\n".to_vec().chain_zeroes(1 << 24);
    assert!(decode_raw(&mut rest, io::sink(), STREAM).unwrap());
    assert_eq!(
        io::copy(&mut rest, &mut io::sink()).unwrap(),
        (1 << 24) + 15 - MAX_MESSAGE_LEN as u64
    );
}

#[test]
fn spp_exists_over_udp_only() {
    assert!(matches!(
        MessageFormat::new(HeaderFormat::Spp, None),
        Ok(MessageFormat::Spp)
    ));
    assert!(matches!(
        MessageFormat::new(HeaderFormat::Proxy, None),
        Ok(STREAM)
    ));
    let conflict = MessageFormat::new(HeaderFormat::Spp, Some(Transport::Tcp)).unwrap_err();
    assert_eq!(conflict.exit_code(), 2);
}

/// A reader that gives these bytes, then so many zeroes (`'0'` is a hex digit too).
trait ChainZeroes {
    fn chain_zeroes(self, count: u64) -> impl Read;
}

impl ChainZeroes for Vec<u8> {
    fn chain_zeroes(self, count: u64) -> impl Read {
        io::Cursor::new(self).chain(io::repeat(b'0').take(count))
    }
}

fn decoded_lines(input: &str, format: MessageFormat) -> (Vec<Value>, bool) {
    let mut output = Vec::new();
    // A small buffer, so that lines come in pieces.
    let input = BufReader::with_capacity(7, input.as_bytes());
    let all_accepted = decode_hex_lines(input, &mut output, format).unwrap();
    let output = String::from_utf8(output).unwrap();
    (
        output
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        all_accepted,
    )
}

fn decoded(input: &[u8], format: MessageFormat) -> (Value, bool) {
    let mut output = Vec::new();
    let all_accepted = decode_raw(input, &mut output, format).unwrap();
    (serde_json::from_slice(&output).unwrap(), all_accepted)
}

fn output_text(hex: &str, format: MessageFormat) -> String {
    let mut output = Vec::new();
    decode_hex_lines(hex.as_bytes(), &mut output, format).unwrap();
    String::from_utf8(output).unwrap()
}
