//! One event as text, for pipes and logs; and the lines that the screen shares with it.

use std::fmt::Write;
use std::net::SocketAddr;

use peername_observe::admin::events::StatusEvent;
use peername_observe::connections::ConnectionSnapshot;
use serde::Serialize;
use serde_json::Value;

use super::app::{Order, moved_bytes, refusals, rows, total};
use super::format::{amount, bytes, seconds};
use super::summary;

/// Renders an event as lines.
pub(super) fn render(event: &StatusEvent) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        // Peers choose some of the text: control characters could begin a control sequence of the terminal.
        out.extend(text.chars().filter(|char| !char.is_control()));
        out.push('\n');
    };
    line(title(event));
    line(totals(event));
    summary::lines(event).into_iter().for_each(&mut line);
    for (reason, count, advice) in refusals(event) {
        line(format!("{reason} {count}: {advice}"));
    }
    for row in rows(event, Order::Bytes) {
        line(cells(row).join("  "));
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
    let (to_backends, to_clients) = moved_bytes(event);
    let metric = |name| amount(total(event, name, None));
    let open = summary::open(event);
    match event.command.as_str() {
        "intercept" => format!(
            "{open}, requests {}, certificates issued {}",
            metric("peername_intercept_requests_total"),
            metric("peername_certificates_issued_total"),
        ),
        "exec" => summary::exec(event),
        _ => format!(
            "{open}, UDP sessions {}, accepted {}, to backends {}, to clients {}",
            metric("peername_udp_sessions"),
            metric("peername_connections_accepted_total"),
            bytes(to_backends as u64),
            bytes(to_clients as u64),
        ),
    }
}

/// The columns of a connection: client, balancer, the requested host (`intercept`) or the backend, state, bytes in and out, age.
pub(super) fn cells(row: &ConnectionSnapshot) -> [String; 7] {
    let addr = |addr: Option<SocketAddr>| {
        addr.map_or_else(|| "unknown".to_owned(), |addr| addr.to_string())
    };
    let count = |value: Option<u64>| value.map(bytes).unwrap_or_default();
    [
        addr(row.client),
        row.peer.to_string(),
        row.host.clone().unwrap_or_else(|| addr(row.target)),
        format!("{} {}", name(row.protocol), name(row.state)),
        count(row.bytes_in),
        count(row.bytes_out),
        seconds(row.age_s),
    ]
}

/// The name of a value in an event, with spaces between words.
fn name(value: impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => name.replace('_', " "),
        _ => String::new(),
    }
}
