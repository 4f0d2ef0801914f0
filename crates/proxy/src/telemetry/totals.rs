//! The last line of the log.

use std::collections::BTreeMap;

use peername_observe::admin::history::ReloadCounts;

use super::counters::{DatagramSnapshot, DatagramTally, Snapshot};

/// Logs the totals since the start.
pub fn log_totals(totals: &Snapshot, reloads: ReloadCounts) {
    let outcomes = totals.by_outcome();
    // Without `..`: a new counter is named here, or it is said why not. What is open now is no total.
    let Snapshot {
        accepted,
        active: _,
        to_upstream,
        to_downstream,
        undelivered,
        collisions,
        datagrams,
        outcomes: _,
    } = totals;
    let DatagramSnapshot {
        sessions: _,
        sessions_opened,
        totals: udp,
    } = datagrams;
    let DatagramTally {
        received,
        to_upstream: datagrams_to_upstream,
        replies,
        to_downstream: datagrams_to_downstream,
        in_kernel,
        dropped,
        // Each is an ended session, which `outcomes` has.
        evicted: _,
    } = udp;
    tracing::info!(
        connections = accepted,
        bytes_to_upstream = to_upstream,
        bytes_to_downstream = to_downstream,
        bytes_undelivered = undelivered,
        port_collisions = collisions,
        outcomes = join(&outcomes),
        reloads = reloads.applied,
        reloads_refused = reloads.refused,
        udp_sessions = sessions_opened,
        datagrams_received = received,
        datagrams_to_upstream = datagrams_to_upstream,
        datagrams_replied = replies,
        datagrams_to_downstream = datagrams_to_downstream,
        datagrams_in_kernel = in_kernel,
        datagrams_dropped = join(dropped),
        "stopped"
    );
}

/// `NAME=COUNT`, separated by spaces.
fn join(counts: &BTreeMap<&str, u64>) -> String {
    let texts: Vec<_> = counts
        .iter()
        .map(|(name, count)| format!("{name}={count}"))
        .collect();
    texts.join(" ")
}
