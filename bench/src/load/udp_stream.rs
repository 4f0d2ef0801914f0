//! As many datagrams as will go, one way: what a relay spends on a datagram when they come in
//! queues, and how many it can't take.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::backend::{Report, STREAMED};
use crate::datagram::{Kind, TAG, Tag};
use crate::load::balancer::{Balancer, RETRY, Sockets, arrived};
use crate::load::{GRACE, Meter, Metric, Plan};

/// Sends at full speed, whatever becomes of it, and asks the backend afterwards. Nothing slows the
/// generator down, as with `iperf3 --udp --bitrate 0`: who is slower than it loses datagrams.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Metric>> {
    let serials = 1..=u32::try_from(plan.connections)?;
    let mut balancer = Balancer::open(plan, serials, Sockets::Each)?;
    ask(plan.backend, Kind::Begin)?;
    let meter = Meter::start(plan)?;
    let mut sent = 0;
    while meter.is_running(Instant::now()) {
        sent += burst(&mut balancer)?;
    }
    let report = settled(plan.backend)?;
    let usage = meter.stop()?;
    judge(&report, &balancer)?;
    // The sink's own clock: the generator does not know when the last one arrived.
    let rate = report.received as f64 / report.span.as_secs_f64();
    let mut metrics = vec![
        Metric::new("datagrams/s", rate),
        Metric::new("MB/s", rate * STREAMED as f64 / 1e6),
    ];
    metrics.extend(usage.cpu_micros_per("CPU us/datagram", report.received));
    let lost = sent.saturating_sub(report.received);
    metrics.push(Metric::new("lost %", 100.0 * lost as f64 / sent as f64));
    metrics.push(Metric::new("reordered", report.reordered as f64));
    Ok(metrics)
}

/// Some datagrams of each client in turn; returns how many.
fn burst(balancer: &mut Balancer) -> Result<u64> {
    let mut sent = 0;
    for _ in 0..BURST {
        for index in 0..balancer.clients.len() {
            let sequence = balancer.send(index, Kind::Stream, STREAMED)?;
            sent += u64::from(sequence.is_some());
        }
    }
    Ok(sent)
}

/// What the sink has when nothing more comes.
fn settled(backend: SocketAddr) -> Result<Report> {
    let deadline = Instant::now() + GRACE;
    let mut report = ask(backend, Kind::Report)?;
    loop {
        sleep(QUIET);
        let next = ask(backend, Kind::Report)?;
        if next == report {
            return Ok(report);
        }
        ensure!(Instant::now() < deadline, "datagrams keep coming in");
        report = next;
    }
}

/// One question to the backend, not through the proxy. It comes from a new socket each time: an answer
/// to an earlier one can't be taken for this one's.
fn ask(backend: SocketAddr, kind: Kind) -> Result<Report> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).context("bind")?;
    socket.connect(backend).context("connect")?;
    socket.set_read_timeout(Some(RETRY))?;
    let mut question = [0; TAG];
    let (serial, sequence) = (0, 0);
    Tag {
        kind,
        serial,
        sequence,
    }
    .write(&mut question);
    let mut answer = [0; REPORT];
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        socket
            .send(&question)
            .with_context(|| format!("ask the backend at {backend}"))?;
        if let Some(length) = arrived(socket.recv(&mut answer)).context("the backend's report")? {
            return serde_json::from_slice(&answer[..length]).context("the backend's report");
        }
    }
    bail!("the backend at {backend} does not answer");
}

/// # Errors
/// Something came that was not sent, or in another client's name, or nothing came.
fn judge(report: &Report, balancer: &Balancer) -> Result<()> {
    let Report {
        received,
        faults,
        unknown,
        ..
    } = report;
    if let Some(first) = &report.first_fault {
        bail!("{faults} datagrams were wrong, {received} right, first: {first}");
    }
    ensure!(*unknown == 0, "{unknown} datagrams came that nobody sent");
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

/// Datagrams of each client between two looks at the clock.
const BURST: usize = 16;

/// How long nothing must come for all to be in. A proxy that gets no processor for so long would
/// lose nothing by it but what it still holds.
const QUIET: Duration = Duration::from_millis(100);

/// A report is as long as its clients are many.
const REPORT: usize = 16 * 1024;
