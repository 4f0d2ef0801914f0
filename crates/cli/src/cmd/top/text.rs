//! One event as text, for pipes and logs; and the lines that the screen shares with it.

use std::fmt::Write;
use std::net::SocketAddr;

use peername_observe::admin::events::StatusEvent;
use peername_observe::connections::ConnectionSnapshot;
use serde::Serialize;
use serde_json::Value;

use super::app::{Order, moved, refusals, rows, total};
use super::format::{amount, bytes, seconds};
use super::summary;

/// The whole event.
pub(super) fn render(event: &StatusEvent) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // Only what could be a control sequence is left out.
        let printable = text.chars().filter(|char| !char.is_control());
        out.extend(printable.chain(['\n']));
    };
    line(title(event));
    line(totals(event));
    summary::lines(event).into_iter().for_each(&mut line);
    for (reason, count, advice) in refusals(event) {
        line(format!("{reason} {count}: {advice}"));
    }
    for one in rows(event, Order::Bytes) {
        line(cells(one).join("  "));
    }
    out
}

/// The command, its readiness and its age.
pub(super) fn title(event: &StatusEvent) -> String {
    let mut title = format!("peername {} {}", event.command, event.version);
    let _ = match &event.not_ready {
        _ if event.is_draining => write!(title, ", draining"),
        Some(reason) => write!(title, ", not ready: {reason}"),
        None => write!(title, ", ready"),
    };
    let _ = write!(title, ", up {}", seconds(event.uptime_s));
    title
}

/// Totals since the start.
fn totals(event: &StatusEvent) -> String {
    let (to_backends, to_clients) = moved(event);
    let all = |name| total(event, name, None);
    let open = summary::open(event);
    match event.command.as_str() {
        "intercept" => format!(
            "{open}, requests {}, certificates issued {}",
            amount(all("peername_intercept_requests_total")),
            amount(all("peername_certificates_issued_total")),
        ),
        "exec" => summary::exec(event),
        _ => format!(
            "{open}, UDP sessions {}, accepted {}, to backends {}, to clients {}",
            amount(all("peername_udp_sessions")),
            amount(all("peername_connections_accepted_total")),
            bytes(to_backends as u64),
            bytes(to_clients as u64),
        ),
    }
}

/// A connection: client, balancer, backend, state, bytes in and out, age.
pub(super) fn cells(one: &ConnectionSnapshot) -> [String; 7] {
    let addr = |addr: Option<SocketAddr>| {
        addr.map_or_else(|| "unknown".to_owned(), |addr| addr.to_string())
    };
    let counted = |value: Option<u64>| value.map(bytes).unwrap_or_default();
    [
        addr(one.client),
        one.balancer.to_string(),
        one.host.clone().unwrap_or_else(|| addr(one.target)),
        format!("{} {}", name(one.protocol), name(one.state)),
        counted(one.bytes_in),
        counted(one.bytes_out),
        seconds(one.age_s),
    ]
}

/// The name that a value has in an event, in words.
fn name(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name.replace('_', " "),
        _ => String::new(),
    }
}
