//! The queue of spans for the exporter, and the counters of exported and dropped spans.

use peername_sys::throttle::Throttle;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::messages::Span;

/// The sending side of the queue. Clones share it.
#[derive(Clone, Debug)]
pub struct SpanQueue {
    sender: Sender<Span>,
    pub(super) counters: Counters,
}

/// Counts exported and dropped spans.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters(Family<[(&'static str, &'static str); 1], Counter>);

impl SpanQueue {
    /// Creates a queue, and its receiving side.
    pub(super) fn new() -> (Self, Receiver<Span>) {
        let (sender, receiver) = channel(CAPACITY);
        let counters = Counters::default();
        (Self { sender, counters }, receiver)
    }

    /// Queues a span. Drops and counts it if the queue is full, or if the exporter has ended.
    pub(crate) fn push(&self, span: Span) {
        if self.sender.try_send(span).is_err() {
            self.counters.count_dropped(1);
            if let Some(suppressed) = FULL_WARNINGS.pass() {
                tracing::warn!(
                    suppressed,
                    "spans dropped: {CAPACITY} wait for the collector of --otlp already, and the collector is too slow"
                );
            }
        }
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register(
            "peername_intercept_spans",
            "Spans of requests, by whether the collector has taken them",
            self.counters.0.clone(),
        );
    }
}

impl Counters {
    pub(super) fn count_exported(&self, spans: usize) {
        self.count("exported", spans);
    }

    pub(super) fn count_dropped(&self, spans: usize) {
        self.count("dropped", spans);
    }

    fn count(&self, outcome: &'static str, spans: usize) {
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.0.get_or_create(&[("outcome", outcome)]).inc_by(spans);
    }

    #[cfg(test)]
    pub(super) fn totals(&self) -> [u64; 2] {
        ["exported", "dropped"].map(|outcome| self.0.get_or_create(&[("outcome", outcome)]).get())
    }
}

static FULL_WARNINGS: Throttle = Throttle::new();

/// The default of OpenTelemetry's SDKs (OTEL_BSP_MAX_QUEUE_SIZE). A span takes two kilobytes, so a full queue takes 4 MiB.
pub(super) const CAPACITY: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_queue_drops_and_counts_further_spans() {
        let (queue, mut receiver) = SpanQueue::new();
        for _ in 0..CAPACITY + 3 {
            queue.push(Span::default());
        }
        assert_eq!(queue.counters.totals(), [0, 3]);
        receiver.close();
        queue.push(Span::default());
        assert_eq!(queue.counters.totals(), [0, 4]);
        assert_eq!(receiver.len(), CAPACITY);
    }
}
