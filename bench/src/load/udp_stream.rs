//! A one-way stream of datagrams, as many as possible: the cost of a datagram when the queues are full, and how many
//! are lost.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::backend::tally::{STREAM_DATAGRAM_BYTES, StreamReport};
use crate::compare::measurement::Metric;
use crate::load::balancer::{Balancer, REPLY_TIMEOUT, SocketLayout, none_if_would_block};
use crate::load::meter::{GRACE, Meter};
use crate::load::spec::LoadSpec;
use crate::wire::datagram::{DatagramKind, TAG_BYTES, Tag};

/// Sends at full speed without feedback, and queries the backend afterwards. Nothing slows the generator down, as with
/// `iperf3 --udp --bitrate 0`: a proxy that is slower than the generator loses datagrams.
pub(crate) fn run(spec: &LoadSpec) -> Result<Vec<Metric>> {
    let serials = 1..=u32::try_from(spec.connections)?;
    let mut balancer = Balancer::open(spec, serials, SocketLayout::PerClient)?;
    query_backend(spec.backend, DatagramKind::ResetTally)?;
    let meter = Meter::start(spec)?;
    let mut sent = 0;
    while meter.is_running(Instant::now()) {
        sent += send_burst(&mut balancer)?;
    }
    let report = wait_until_settled(spec.backend)?;
    let usage = meter.stop()?;
    verify(&report, &balancer)?;
    // By the sink's clock: the generator does not know when the last datagram arrived.
    let rate = report.received as f64 / report.span.as_secs_f64();
    let mut metrics = vec![
        Metric::new("datagrams/s", rate),
        Metric::new("MB/s", rate * STREAM_DATAGRAM_BYTES as f64 / 1e6),
    ];
    metrics.extend(usage.cpu_micros_per("CPU us/datagram", report.received));
    let lost = sent.saturating_sub(report.received);
    metrics.push(Metric::new("lost %", 100.0 * lost as f64 / sent as f64));
    metrics.push(Metric::new("reordered", report.reordered as f64));
    Ok(metrics)
}

/// Sends a few datagrams of each client in turn; returns how many.
fn send_burst(balancer: &mut Balancer) -> Result<u64> {
    let mut sent = 0;
    for _ in 0..BURST {
        for index in 0..balancer.clients.len() {
            let sequence = balancer.send(index, DatagramKind::Stream, STREAM_DATAGRAM_BYTES)?;
            sent += u64::from(sequence.is_some());
        }
    }
    Ok(sent)
}

/// Waits until no more datagrams arrive, and returns the sink's report.
fn wait_until_settled(backend: SocketAddr) -> Result<StreamReport> {
    let deadline = Instant::now() + GRACE;
    let mut report = query_backend(backend, DatagramKind::TallyQuery)?;
    loop {
        sleep(SETTLE_TIME);
        let next = query_backend(backend, DatagramKind::TallyQuery)?;
        if next == report {
            return Ok(report);
        }
        ensure!(Instant::now() < deadline, "datagrams keep coming in");
        report = next;
    }
}

/// Queries the backend directly, not through the proxy. Each query has a new socket, so that the reply to an earlier
/// query can't be mistaken for the reply to this one.
fn query_backend(backend: SocketAddr, kind: DatagramKind) -> Result<StreamReport> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("bind")?;
    socket.connect(backend).context("connect")?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let mut query = [0; TAG_BYTES];
    let (serial, sequence) = (0, 0);
    Tag {
        kind,
        serial,
        sequence,
    }
    .write(&mut query);
    let mut reply = [0; MAX_REPORT_BYTES];
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        socket
            .send(&query)
            .with_context(|| format!("ask the backend at {backend}"))?;
        if let Some(length) =
            none_if_would_block(socket.recv(&mut reply)).context("the backend's report")?
        {
            return serde_json::from_slice(&reply[..length]).context("the backend's report");
        }
    }
    bail!("the backend at {backend} does not answer");
}

/// Checks what arrived.
fn verify(report: &StreamReport, balancer: &Balancer) -> Result<()> {
    let StreamReport {
        received,
        faults,
        unknown,
        ..
    } = report;
    if let Some(first) = &report.first_fault {
        bail!("{faults} datagrams were wrong, {received} right, first: {first}");
    }
    ensure!(
        *unknown == 0,
        "{unknown} datagrams arrived that were not sent"
    );
    for (serial, peer) in &report.peers {
        let client = balancer.clients.iter().find(|it| it.serial == *serial);
        let client = client.with_context(|| format!("there is no client {serial}"))?;
        ensure!(
            client.seen == *peer,
            "misdelivered: client {serial} came from {peer} and before that from {}",
            client.seen
        );
    }
    ensure!(*received > 1, "nothing arrived");
    Ok(())
}

/// Datagrams of each client between two reads of the clock.
const BURST: usize = 16;

/// The stream counts as complete when nothing has arrived for this long. If a proxy is off the processor for longer, only the
/// datagrams that it still holds are lost.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// The size of a report grows with the number of clients.
const MAX_REPORT_BYTES: usize = 16 * 1024;
