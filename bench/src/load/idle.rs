//! Thousands of connections that have nothing to say: what a relay keeps for each.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::load::connection::MESSAGE;
use crate::load::{Connection, GLANCE, GRACE, Metric, Plan};
use crate::poller::{Interest, Poller};

/// Opens all connections, each with one echo, so every one stands as far as the backend and has
/// been used once. Leaves them alone for the plan's time and takes the proxy's memory. Then one
/// more echo on each, one after the other, shows that they live.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Metric>> {
    let before = plan.watch.map(|tree| tree.pss()).transpose()?;
    let mut connections = (1..=plan.connections as u64)
        .map(|serial| Connection::open(plan, serial))
        .collect::<Result<Vec<_>>>()?;
    sleep(plan.duration.max(SETTLE));
    let after = plan.watch.map(|tree| tree.pss()).transpose()?;
    let woken = wake(&mut connections)?;
    let mut metrics = vec![Metric::new("wake us", woken.as_secs_f64() * 1e6)];
    if let (Some(before), Some(after)) = (before, after) {
        let kib = |bytes: u64| bytes as f64 / 1024.0;
        let grown = kib(after) - kib(before);
        metrics.push(Metric::new(
            "KiB/connection",
            grown / plan.connections as f64,
        ));
        metrics.push(Metric::new("PSS KiB empty", kib(before)));
        metrics.push(Metric::new("PSS KiB full", kib(after)));
    }
    Ok(metrics)
}

/// One echo on each connection; returns the mean time of one.
fn wake(connections: &mut [Connection]) -> Result<Duration> {
    let start = Instant::now();
    let mut poller = Poller::new()?;
    let mut ready = Vec::new();
    let mut scratch = [0; 2 * MESSAGE];
    for (token, connection) in connections.iter_mut().enumerate() {
        let deadline = Instant::now() + GRACE;
        poller.add(&*connection, token, Interest::IN)?;
        connection.send(MESSAGE)?;
        while connection.outstanding() > 0 {
            ensure!(
                Instant::now() < deadline,
                "connection {} is dead",
                connection.serial()
            );
            poller.wait(GLANCE, &mut ready)?;
            let serial = connection.serial();
            connection
                .receive(&mut scratch)
                .with_context(|| format!("connection {serial}"))?;
        }
    }
    Ok(start.elapsed() / connections.len() as u32)
}

/// Allocators and collectors need a moment to give back what they will.
const SETTLE: Duration = Duration::from_millis(500);
