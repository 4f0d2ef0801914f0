//! Time and CPU time of a measured interval, and latency histograms.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::compare::measurement::Metric;
use crate::host::procfs::{CpuMeter, ProcessTree};
use crate::load::spec::LoadSpec;

/// Measures an interval, and tells when work must end.
///
/// The interval ends when the last byte is back, not at the deadline, so that work and cost cover the same bytes.
pub(super) struct Meter {
    start: Instant,
    watch: Option<CpuMeter>,
    all: CpuMeter,
    deadline: Instant,
}

/// Time and CPU time of a measured interval: `cpu` is the proxy's alone, `cpu_of_all` includes generator and backend.
pub(super) struct Usage {
    elapsed: Duration,
    pub(super) cpu: Option<Duration>,
    cpu_of_all: Duration,
}

impl Meter {
    pub(super) fn start(spec: &LoadSpec) -> Result<Self> {
        let watch = spec.watch.map(CpuMeter::start).transpose()?;
        let all = CpuMeter::start(ProcessTree::of(std::process::id()))?;
        let start = Instant::now();
        Ok(Self {
            start,
            watch,
            all,
            deadline: start + spec.duration,
        })
    }

    /// Whether new work may begin.
    pub(super) fn is_running(&self, now: Instant) -> bool {
        now < self.deadline
    }

    /// Whether outstanding work must be abandoned.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.deadline + GRACE
    }

    pub(super) fn stop(self) -> Result<Usage> {
        Ok(Usage {
            elapsed: self.start.elapsed(),
            cpu: self.watch.map(CpuMeter::stop).transpose()?,
            cpu_of_all: self.all.stop()?,
        })
    }
}

impl Usage {
    /// `count` as a rate per second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of the proxy's CPU time for each of `count` operations, if there was a proxy.
    pub(super) fn cpu_micros_per(&self, name: &str, count: u64) -> Option<Metric> {
        Some(Metric::new(
            name,
            self.cpu?.as_secs_f64() * 1e6 / count as f64,
        ))
    }

    /// As [`cpu_micros_per`](Self::cpu_micros_per), but of generator, proxy and backend together: the work of an in-kernel
    /// data path is accounted to the process that sends.
    pub(super) fn cpu_micros_of_all_per(&self, name: &str, count: u64) -> Metric {
        Metric::new(name, self.cpu_of_all.as_secs_f64() * 1e6 / count as f64)
    }
}

/// Creates an empty histogram of nanoseconds, with three significant digits. The bounds are valid, so it does not fail.
pub(crate) fn new_latency_histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(
        1,
        2 * GRACE.as_nanos() as u64,
        3,
    )?)
}

/// The latency metrics that every workload reports.
pub(crate) fn latency_metrics(latency: &Histogram<u64>) -> [Metric; 2] {
    let micros = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
    [
        Metric::new("p50 us", micros(0.5)),
        Metric::new("p99 us", micros(0.99)),
    ]
}

/// How long outstanding work may take after the deadline: fifty times a retransmission on loopback. What takes longer
/// is lost.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How long one wait may last, so that deadlines are noticed even if no event arrives.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(100);
