//! Summary lines: the peers with the most connections, backends that are down, and the decisions of `intercept`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use peername_observe::admin::ACCEPT_PAUSED;
use peername_observe::admin::events::{Peer, StatusEvent, Summary};

use super::app::{samples, total};
use super::format::{amount, bytes, seconds};

/// The lines that an operator should see first, as far as there is something to show.
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

/// The number of open connections, and their limit.
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

/// The line that `exec` has instead of the open connections, which only its program knows.
pub(super) fn exec(event: &StatusEvent) -> String {
    format!(
        "accepted {}   wait for their header {}   open connections are the program's own: `ss -tn` lists them",
        amount(total(event, "peername_connections_accepted_total", None)),
        amount(total(event, "peername_exec_pending_headers", None)),
    )
}

/// The clients and balancers with the most connections or bytes.
fn peers(event: &StatusEvent) -> Vec<String> {
    let connections = |peer: &Peer| peer.connections;
    let clients = sum_by_address(
        event,
        |summary| &summary.clients.by_connections,
        connections,
    );
    let by_bytes = sum_by_address(
        event,
        |summary| &summary.clients.by_bytes,
        |peer| peer.bytes,
    );
    let balancers = sum_by_address(
        event,
        |summary| &summary.balancers.by_connections,
        connections,
    );
    [
        largest("clients", clients, amount),
        largest("clients by bytes", by_bytes, |sum| bytes(sum as u64)),
        largest("balancers", balancers, amount),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Sums a value of listed peers by address, over TCP and UDP.
fn sum_by_address(
    event: &StatusEvent,
    peers: fn(&Summary) -> &[Peer],
    value: fn(&Peer) -> u64,
) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<IpAddr, u64> = BTreeMap::new();
    for summary in [&event.connections, &event.sessions].into_iter().flatten() {
        for peer in peers(summary) {
            *sums.entry(peer.address).or_default() += value(peer);
        }
    }
    sums.into_iter()
        .map(|(address, sum)| (address.to_string(), sum as f64))
        .collect()
}

/// The decisions and checks of `intercept`, and connections that failed before a request.
fn intercept(event: &StatusEvent) -> Vec<String> {
    let by_label = |title: &str, name: &str, label: &str| {
        let mut counts: BTreeMap<String, f64> = BTreeMap::new();
        for sample in samples(event, name) {
            let value = sample.labels.get(label).cloned().unwrap_or_default();
            *counts.entry(value).or_default() += sample.value;
        }
        largest(title, counts, amount)
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

/// The smallest upper bound of a histogram's buckets below which there are at least `wanted` observations. Samples with the
/// same bound and other labels are added up.
fn bucket_bound(event: &StatusEvent, name: &str, wanted: f64) -> Option<f64> {
    let mut counts: Vec<(f64, f64)> = Vec::new();
    for sample in event.metrics.get(name)? {
        let bound = sample.labels.get("le")?.parse().ok()?;
        match counts.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, count)) => *count += sample.value,
            None => counts.push((bound, sample.value)),
        }
    }
    counts
        .into_iter()
        .filter(|(_, count)| *count >= wanted)
        .map(|(bound, _)| bound)
        .min_by(f64::total_cmp)
}

/// A line with the largest counts, the largest first; `None` if all are 0.
fn largest(
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
        .take(MAX_LISTED)
        .map(|(name, count)| format!("{name} {}", show(*count)))
        .collect();
    (!texts.is_empty()).then(|| format!("{title}: {}", texts.join(", ")))
}

/// A line for each backend that is down.
fn outages(event: &StatusEvent) -> Vec<String> {
    samples(event, "peername_backend_down_seconds")
        .iter()
        .filter_map(|sample| Some((sample.labels.get("backend")?, sample.value)))
        .filter(|(backend, _)| is_down(event, backend))
        .map(|(backend, down_for)| {
            let last_failure = total(
                event,
                "peername_backend_last_failure_seconds",
                Some(("backend", backend)),
            );
            format!(
                "backend {backend} has accepted no clients for {}, its last failure was {} ago",
                seconds(down_for),
                seconds(last_failure)
            )
        })
        .collect()
}

fn is_down(event: &StatusEvent, backend: &str) -> bool {
    samples(event, "peername_backend_up").iter().any(|sample| {
        sample.value == 0.0
            && sample
                .labels
                .get("backend")
                .is_some_and(|name| name == backend)
    })
}

fn reload(event: &StatusEvent) -> Option<String> {
    let reason = event.last_reload.as_ref()?.refused.as_ref()?;
    // Errors of a file have a line each.
    let reason = reason.replace('\n', "; ");
    Some(format!("the last reload was refused: {reason}"))
}

/// Counts in a line: as many as a terminal has room for.
const MAX_LISTED: usize = 5;
