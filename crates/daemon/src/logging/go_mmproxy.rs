//! The log format of go-mmproxy, for tools that parse it: JSON with its keys and its phrases.
//!
//! It is written from the same events as the native formats. Level 1 (`debug`) shows the connections that failed and level 2
//! (`trace`) all connections; there is one line for each, at its end.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;

use peername_observe::admin::LogLevel as _;
use peername_proxy::telemetry::codes::{self, Stage};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::level::LevelHandle;

/// Formats events as lines of go-mmproxy's log.
#[derive(Clone, Debug)]
pub(super) struct GoMmproxyFormat {
    level: LevelHandle,
}

impl GoMmproxyFormat {
    /// Makes the format of a log of this level, which may change.
    pub(super) fn new(level: LevelHandle) -> Self {
        Self { level }
    }

    /// Translates an event into lines, each as its pairs in order.
    fn lines(&self, mut fields: Fields) -> Vec<Pairs> {
        let message = fields.text("message");
        match message.as_str() {
            "listening" => listening(&fields),
            "connection ended" => self.connection(&fields).into_iter().collect(),
            message if message.starts_with("datagram dropped: ") => vec![dropped(&fields)],
            _ => {
                fields.0.remove("message");
                vec![
                    [("msg".to_owned(), json!(message))]
                        .into_iter()
                        .chain(fields.0)
                        .collect(),
                ]
            }
        }
    }

    fn connection(&self, fields: &Fields) -> Option<Pairs> {
        let outcome = fields.text("outcome");
        let is_fault = !is_regular_end(&outcome);
        let error = is_fault.then(|| error_text(&outcome, &fields.text("error")));
        if error.is_none() && self.level.get() < Level::TRACE {
            return None;
        }
        let is_udp = fields.0.contains_key("datagrams_to_upstream");
        let protocol = if is_udp { "UDP" } else { "TCP" };
        let message = match error {
            Some(_) => "dropping connection",
            None => "connection closing",
        };
        // go-mmproxy logs both addresses once it has read the header, and UNKNOWN for a header without a client.
        let client = fields.0.contains_key("upstream").then(|| {
            let client = fields.0.get("client").cloned();
            client.unwrap_or_else(|| json!("UNKNOWN"))
        });
        let listener = fields.0.get("listener").cloned();
        Some(pairs([
            ("msg", Some(json!(message))),
            ("listenerNum", Some(json!(listener_number()))),
            ("protocol", Some(json!(protocol))),
            ("listenAddr", listener.clone()),
            ("frontendRemoteAddr", fields.0.get("peer").cloned()),
            (
                "frontendLocalAddr",
                fields.0.get("local").cloned().or(listener),
            ),
            ("clientAddr", client),
            ("targetAddr", fields.0.get("upstream").cloned()),
            ("error", error.map(|error| json!(error))),
        ]))
    }
}

impl<S, N> FormatEvent<S, N> for GoMmproxyFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        for pairs in self.lines(fields) {
            let mut time = String::new();
            SystemTime.format_time(&mut Writer::new(&mut time))?;
            let level = event.metadata().level();
            write!(writer, r#"{{"time":"{time}","level":"{level}""#)?;
            for (key, value) in pairs {
                write!(writer, ",{}:{value}", json!(key))?;
            }
            writeln!(writer, "}}")?;
        }
        Ok(())
    }
}

/// A line without time and level.
type Pairs = Vec<(String, Value)>;

/// Makes a line of those pairs that have a value.
fn pairs<const N: usize>(pairs: [(&str, Option<Value>); N]) -> Pairs {
    pairs
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
}

/// An event's fields by name.
#[derive(Debug, Default)]
struct Fields(BTreeMap<String, Value>);

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn text(&self, name: &str) -> String {
        let value = self.0.get(name).and_then(Value::as_str);
        value.unwrap_or_default().to_owned()
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}

/// A line for each listening socket: every worker has a socket on every address.
fn listening(fields: &Fields) -> Vec<Pairs> {
    let workers = fields.0.get("workers").and_then(Value::as_u64).unwrap_or(1);
    let mut lines = Vec::new();
    for number in 0..workers {
        for (field, protocol) in [("tcp", "TCP"), ("udp", "UDP")] {
            for address in fields.text(field).split_whitespace() {
                lines.push(pairs([
                    ("msg", Some(json!("listening"))),
                    ("listenerNum", Some(json!(number))),
                    ("protocol", Some(json!(protocol))),
                    ("listenAddr", Some(json!(address))),
                ]));
            }
        }
    }
    lines
}

fn dropped(fields: &Fields) -> Pairs {
    let message = fields.text("message");
    let cause = message
        .strip_prefix("datagram dropped: ")
        .unwrap_or(&message);
    let error = error_text(&fields.text("reason"), cause);
    pairs([
        ("msg", Some(json!("dropping datagram"))),
        ("listenerNum", Some(json!(listener_number()))),
        ("protocol", Some(json!("UDP"))),
        ("frontendRemoteAddr", fields.0.get("peer").cloned()),
        ("error", Some(json!(error))),
    ])
}

/// Returns the text of an error: go-mmproxy's phrase for the code, if it has one, followed by peername's error.
fn error_text(code: &str, error: &str) -> String {
    match phrase(code) {
        Some(phrase) if error.is_empty() => phrase.to_owned(),
        Some(phrase) => format!("{phrase}: {error}"),
        None => error.to_owned(),
    }
}

fn is_regular_end(outcome: &str) -> bool {
    codes::look_up(outcome).is_some_and(|code| code.stage == Stage::RegularEnd)
}

/// Returns go-mmproxy's phrase for the outcome of a connection or the reason of a dropped datagram. `None` where each of its
/// phrases would be wrong: a datagram that is dropped after its header was read and without an attempt to reach the backend, or
/// that can't be sent.
fn phrase(code: &str) -> Option<&'static str> {
    Some(match codes::look_up(code)?.stage {
        Stage::Peer => "connection origin not in allowed subnets",
        Stage::HeaderRead => "failed to read PROXY header",
        Stage::HeaderSearch => "failed to parse PROXY header: PROXY header missing",
        Stage::HeaderParse => "failed to parse PROXY header",
        Stage::Connect => "failed to establish backend connection",
        Stage::Relay if code == "reset" => "connection broken: connection reset by peer",
        Stage::Relay => "connection broken",
        Stage::RegularEnd | Stage::Datagram => return None,
    })
}

/// The number of the worker, from the name of its thread.
fn listener_number() -> u32 {
    let current = thread::current();
    let number = current.name().and_then(|name| name.strip_prefix("worker-"));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::level;

    fn fields(pairs: &[(&str, Value)]) -> Fields {
        let owned = |(key, value): &(&str, Value)| ((*key).to_owned(), value.clone());
        Fields(pairs.iter().map(owned).collect())
    }

    fn lines(level: Level, pairs: &[(&str, Value)]) -> Vec<String> {
        let line = |pairs: Pairs| {
            let pairs: Vec<_> = pairs
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect();
            pairs.join(" ")
        };
        let (_filter, level) = level::filter(level, None);
        let lines = GoMmproxyFormat::new(level).lines(fields(pairs));
        lines.into_iter().map(line).collect()
    }

    #[test]
    fn each_listening_socket_has_a_line() {
        let event = [
            ("message", json!("listening")),
            ("tcp", json!("0.0.0.0:8443")),
            ("udp", json!("")),
            ("workers", json!(2)),
        ];
        let line = |number| {
            format!(
                r#"msg="listening" listenerNum={number} protocol="TCP" listenAddr="0.0.0.0:8443""#
            )
        };
        assert_eq!(lines(Level::INFO, &event), [line(0), line(1)]);
    }

    #[test]
    fn level_1_shows_errors_and_level_2_all_connections() {
        let event = |outcome: &str| {
            [
                ("message", json!("connection ended")),
                ("listener", json!("0.0.0.0:1")),
                ("peer", json!("10.0.0.1:5")),
                ("client", json!("192.0.2.1:7")),
                ("upstream", json!("127.0.0.1:2")),
                ("outcome", json!(outcome)),
                ("error", json!("it refused")),
            ]
        };
        let common = r#"listenerNum=0 protocol="TCP" listenAddr="0.0.0.0:1" frontendRemoteAddr="10.0.0.1:5" frontendLocalAddr="0.0.0.0:1" clientAddr="192.0.2.1:7" targetAddr="127.0.0.1:2""#;
        assert!(lines(Level::DEBUG, &event("finished")).is_empty());
        let closing = format!(r#"msg="connection closing" {common}"#);
        assert_eq!(lines(Level::TRACE, &event("finished")), [closing]);
        let error = r#"error="failed to establish backend connection: it refused""#;
        let dropping = format!(r#"msg="dropping connection" {common} {error}"#);
        assert_eq!(lines(Level::DEBUG, &event("connect_refused")), [dropping]);
    }

    #[test]
    fn end_by_the_operator_is_no_error() {
        for outcome in ["closed_by_admin", "access_revoked"] {
            let event = [
                ("message", json!("connection ended")),
                ("outcome", json!(outcome)),
            ];
            assert!(lines(Level::DEBUG, &event).is_empty(), "{outcome}");
            let closing = r#"msg="connection closing" listenerNum=0 protocol="TCP""#;
            assert_eq!(lines(Level::TRACE, &event), [closing], "{outcome}");
        }
    }

    #[test]
    fn errors_have_the_phrases_of_go_mmproxy() {
        let parse = "failed to parse PROXY header";
        let (read, broken) = ("failed to read PROXY header", "connection broken");
        let connect = "failed to establish backend connection";
        for (code, phrase) in [
            (
                "no_header",
                "failed to parse PROXY header: PROXY header missing",
            ),
            ("v2_length", parse),
            ("too_many_tlvs", parse),
            ("header_without_address", parse),
            ("header_without_client", parse),
            ("header_deviation", parse),
            ("header_timeout", read),
            ("too_many_pending", read),
            ("untrusted_peer", "connection origin not in allowed subnets"),
            ("unwatched", broken),
            ("socket_destroyed", broken),
            ("connect_timeout", connect),
            ("source_multicast", connect),
            ("tlv_missing", connect),
        ] {
            assert_eq!(error_text(code, "x"), format!("{phrase}: x"), "{code}");
        }
        assert_eq!(error_text("stranger", "x"), "x");
        let reset = "connection broken: connection reset by peer";
        assert_eq!(error_text("reset", ""), reset);
    }

    #[test]
    fn dropped_datagram_without_a_phrase_has_its_cause() {
        let event = [
            ("message", json!("datagram dropped: send buffer full")),
            ("reason", json!("send_buffer_full")),
            ("peer", json!("10.0.0.1:5")),
        ];
        let expected = r#"msg="dropping datagram" listenerNum=0 protocol="UDP" frontendRemoteAddr="10.0.0.1:5" error="send buffer full""#;
        assert_eq!(lines(Level::INFO, &event), [expected]);
    }
}
