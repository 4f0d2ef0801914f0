//! Lines about the state as a whole: the peers with the most connections, backends that are down, and what `intercept` does.

use std::collections::BTreeMap;
use std::net::IpAddr;

use peername_observe::admin::ACCEPT_PAUSED;
use peername_observe::admin::events::{Peer, StatusEvent, Summary};

use super::app::total;
use super::format::{amount, bytes, seconds};

/// What an operator should see first, each in a line: empty lines are left out.
pub(super) fn lines(event: &StatusEvent) -> Vec<String> {
    let mut lines: Vec<String> = outages(event);
    lines.extend(
        event
            .advice
            .get(ACCEPT_PAUSED)
            .map(|advice| format!("accepting is paused: {advice}")),
    );
    lines.extend(reload(event));
    match event.command.as_str() {
        "intercept" => lines.extend(intercept(event)),
        _ => lines.extend(peers(event)),
    }
    lines
}

/// How many connections are open, and of how many.
pub(super) fn open(event: &StatusEvent) -> String {
    let name = match event.command.as_str() {
        "intercept" => "peername_intercept_connections_active",
        _ => "peername_connections_active",
    };
    let open = amount(total(event, name, None));
    match total(event, "peername_connections_limit", None) {
        0.0 => format!("open {open}"),
        limit => format!("open {open} of {}", amount(limit)),
    }
}

/// What `exec` shows in the place of open connections, which are its program's own.
pub(super) fn exec(event: &StatusEvent) -> String {
    format!(
        "accepted {}   wait for their header {}   open connections are the program's own: `ss -tn` lists them",
        amount(total(event, "peername_connections_accepted_total", None)),
        amount(total(event, "peername_exec_pending_headers", None)),
    )
}

fn peers(event: &StatusEvent) -> Vec<String> {
    let counts = |of: fn(&Summary) -> &[Peer], value: fn(&Peer) -> u64| {
        let summaries = [&event.connections, &event.sessions].into_iter().flatten();
        let mut counts: BTreeMap<IpAddr, u64> = BTreeMap::new();
        for peer in summaries.flat_map(of) {
            *counts.entry(peer.address).or_default() += value(peer);
        }
        let counts = counts.into_iter();
        counts.map(|(peer, count)| (peer.to_string(), count as f64))
    };
    let (connections, moved) = (|peer: &Peer| peer.connections, |peer: &Peer| peer.bytes);
    let clients = counts(|summary| &summary.clients.by_connections, connections);
    let by_bytes = counts(|summary| &summary.clients.by_bytes, moved);
    let balancers = counts(|summary| &summary.balancers.by_connections, connections);
    [
        most("clients", clients),
        most_of("clients by bytes", by_bytes, |count| bytes(count as u64)),
        most("balancers", balancers),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn intercept(event: &StatusEvent) -> Vec<String> {
    let by_label = |title: &str, name: &str, label: &str| {
        let samples = event.metrics.get(name).map_or(&[][..], Vec::as_slice);
        let mut counts: BTreeMap<String, f64> = BTreeMap::new();
        for sample in samples {
            let value = sample.labels.get(label).cloned().unwrap_or_default();
            *counts.entry(value).or_default() += sample.value;
        }
        most(title, counts)
    };
    let decisions = by_label("decisions", "peername_intercept_requests_total", "decision");
    let checks = by_label("checks", "peername_check_total", "outcome");
    let latency = check_time(event);
    let failed = "peername_intercept_connections_failed_total";
    let refused = by_label("connections without a request", failed, "reason");
    [decisions, checks, latency, refused]
        .into_iter()
        .flatten()
        .collect()
}

/// The mean and the 99th percentile of the check's time since the start; `None` before the first check. A histogram only
/// knows between which bounds the percentile is, so its upper bound is shown.
fn check_time(event: &StatusEvent) -> Option<String> {
    let count = total(event, "peername_check_seconds_count", None);
    if count <= 0.0 {
        return None;
    }
    let mean = total(event, "peername_check_seconds_sum", None) / count;
    let p99 = match bucket_bound(event, "peername_check_seconds_bucket", count * 0.99) {
        Some(bound) if bound.is_finite() => format!(", p99 up to {} ms", amount(bound * 1000.0)),
        Some(_) => ", p99 above all buckets".to_owned(),
        None => String::new(),
    };
    Some(format!(
        "time of a check: mean {:.1} ms{p99}, since the start",
        mean * 1000.0
    ))
}

/// The upper bound of the first bucket of a histogram up to which this many are counted.
fn bucket_bound(event: &StatusEvent, name: &str, wanted: f64) -> Option<f64> {
    let mut counts: Vec<(f64, f64)> = Vec::new();
    for sample in event.metrics.get(name)? {
        let bound = sample.labels.get("le")?.parse().ok()?;
        match counts.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, count)) => *count += sample.value,
            None => counts.push((bound, sample.value)),
        }
    }
    let reached = counts.iter().filter(|(_, count)| *count >= wanted);
    reached.map(|(bound, _)| *bound).min_by(f64::total_cmp)
}

/// As [`most_of`], of numbers.
fn most(title: &str, counts: impl IntoIterator<Item = (String, f64)>) -> Option<String> {
    most_of(title, counts, amount)
}

/// The first few, most first; `None` if all are 0.
fn most_of(
    title: &str,
    counts: impl IntoIterator<Item = (String, f64)>,
    show: fn(f64) -> String,
) -> Option<String> {
    let mut counts: Vec<_> = counts
        .into_iter()
        .filter(|(_, count)| *count > 0.0)
        .collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let texts: Vec<_> = counts
        .iter()
        .take(LISTED)
        .map(|(name, count)| format!("{name} {}", show(*count)))
        .collect();
    (!texts.is_empty()).then(|| format!("{title}: {}", texts.join(", ")))
}

fn outages(event: &StatusEvent) -> Vec<String> {
    let down = event.metrics.get("peername_backend_down_seconds");
    let down = down.map_or(&[][..], Vec::as_slice).iter();
    let is_down = |backend: &str| {
        let backends = event
            .metrics
            .get("peername_backend_up")
            .map_or(&[][..], Vec::as_slice);
        let mut backends = backends.iter();
        backends.any(|one| {
            one.value == 0.0 && one.labels.get("backend").is_some_and(|of| of == backend)
        })
    };
    let last = |backend: &str| {
        let name = "peername_backend_last_failure_seconds";
        seconds(total(event, name, Some(("backend", backend))))
    };
    let line = |(backend, time): (&String, f64)| {
        format!(
            "backend {backend} accepts no clients, for {}, the last one {} ago",
            seconds(time),
            last(backend)
        )
    };
    down.filter_map(|one| Some((one.labels.get("backend")?, one.value)))
        .filter(|(backend, _)| is_down(backend))
        .map(line)
        .collect()
}

fn reload(event: &StatusEvent) -> Option<String> {
    let reason = event.last_reload.as_ref()?.refused.as_ref()?;
    // Errors of a file have a line each.
    let reason = reason.replace('\n', "; ");
    Some(format!("the last reload was refused: {reason}"))
}

/// As many as a line of a terminal has room for.
const LISTED: usize = 5;
