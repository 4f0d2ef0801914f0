//! Thousands of idle connections: the memory of a connection.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::compare::measurement::Metric;
use crate::host::poller::{Interest, Poller};
use crate::load::connection::{Connection, MESSAGE_BYTES};
use crate::load::meter::{GRACE, POLL_INTERVAL};
use crate::load::spec::LoadSpec;

/// Opens all connections, each with one echo, so that each is established as far as the backend and has been used
/// once. Leaves them idle for the spec's duration, then measures the proxy's memory. One more echo on each, one after
/// the other, verifies that they still work.
pub(crate) fn run(spec: &LoadSpec) -> Result<Vec<Metric>> {
    let before = spec.watch.map(|tree| tree.pss()).transpose()?;
    let mut connections = (1..=spec.connections as u64)
        .map(|serial| Connection::open(spec, serial))
        .collect::<Result<Vec<_>>>()?;
    sleep(spec.duration.max(MEMORY_SETTLE_TIME));
    let after = spec.watch.map(|tree| tree.pss()).transpose()?;
    let wake_time = echo_on_each(&mut connections)?;
    let mut metrics = vec![Metric::new("wake us", wake_time.as_secs_f64() * 1e6)];
    if let (Some(before), Some(after)) = (before, after) {
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let grown = kib(after) - kib(before);
        metrics.push(Metric::new(
            "KiB/connection",
            grown / spec.connections as f64,
        ));
        metrics.push(Metric::new("PSS KiB empty", kib(before)));
        metrics.push(Metric::new("PSS KiB full", kib(after)));
    }
    Ok(metrics)
}

/// Sends one message on each connection and waits for its echo; returns the mean time.
fn echo_on_each(connections: &mut [Connection]) -> Result<Duration> {
    let start = Instant::now();
    let mut poller = Poller::new()?;
    let mut ready = Vec::new();
    let mut scratch = [0; 2 * MESSAGE_BYTES];
    for (token, connection) in connections.iter_mut().enumerate() {
        let deadline = Instant::now() + GRACE;
        poller.add(&*connection, token, Interest::IN)?;
        connection.send(MESSAGE_BYTES)?;
        while connection.outstanding() > 0 {
            ensure!(
                Instant::now() < deadline,
                "connection {} is dead",
                connection.serial()
            );
            poller.wait(POLL_INTERVAL, &mut ready)?;
            let serial = connection.serial();
            connection
                .receive(&mut scratch)
                .with_context(|| format!("connection {serial}"))?;
        }
    }
    Ok(start.elapsed() / connections.len() as u32)
}

/// Allocators and garbage collectors need a moment to return memory.
const MEMORY_SETTLE_TIME: Duration = Duration::from_millis(500);
