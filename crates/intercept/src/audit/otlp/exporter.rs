//! The task that sends the queued spans in batches.

use std::time::Duration;

use bytes::Bytes;
use peername_sys::throttle::Throttle;
use prost::Message as _;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::collector::{Collector, SendError};
use super::collector_url::CollectorUrl;
use super::environment::{self, ExporterError};
use super::messages::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, InstrumentationScope, Resource,
    ResourceSpans, ScopeSpans, Span,
};
use super::queue::{Counters, SpanQueue};

/// The handle of the export task, which runs on the runtime on which it was started.
#[derive(Debug)]
pub struct SpanExporter {
    queue: SpanQueue,
    /// Stops the task. The value is the deadline of the last batch.
    stop: watch::Sender<Option<Instant>>,
    task: JoinHandle<()>,
}

impl SpanExporter {
    /// Starts the exporter. Reads the environment, and for https the trusted roots of this host, so call it before the
    /// process is confined.
    ///
    /// # Panics
    ///
    /// Outside of a runtime.
    pub fn start(url: &CollectorUrl) -> Result<Self, ExporterError> {
        let (collector, resource) = (Collector::new(url)?, environment::resource()?);
        let (queue, receiver) = SpanQueue::new();
        let (stop, stopped) = watch::channel(None);
        let export = ExportTask {
            collector,
            resource,
            receiver,
            counters: queue.counters.clone(),
            stopped,
        };
        let task = tokio::spawn(export.run());
        Ok(Self { queue, stop, task })
    }

    /// The queue to which requests add their spans.
    pub fn queue(&self) -> SpanQueue {
        self.queue.clone()
    }

    /// Sends the queued spans, within two seconds, and ends the task. Spans that are queued later or not sent by then are dropped.
    pub async fn stop(self) {
        self.stop.send_replace(Some(Instant::now() + FLUSH_LIMIT));
        // It can't fail: a panic ends the process.
        let _ = self.task.await;
    }
}

struct ExportTask {
    collector: Collector,
    resource: Resource,
    receiver: Receiver<Span>,
    counters: Counters,
    /// The deadline of the last batch, once the exporter is stopped.
    stopped: watch::Receiver<Option<Instant>>,
}

impl ExportTask {
    /// Sends batches until the exporter is stopped and the queue is empty.
    async fn run(mut self) {
        loop {
            let batch = self.next_batch().await;
            if batch.is_empty() {
                return;
            }
            let spans = batch.len();
            match self.deliver(batch).await {
                Ok(partial) => self.count_delivered(spans, &partial),
                Err(error) => {
                    self.counters.count_dropped(spans);
                    self.warn(&error, "spans dropped");
                }
            }
        }
    }

    /// Waits for a span, and then for [`BATCH_DELAY`] or until the batch is full. Returns an empty batch once the queue is
    /// closed and drained.
    async fn next_batch(&mut self) -> Vec<Span> {
        let mut batch = Vec::new();
        let mut deadline = None;
        while batch.len() < MAX_BATCH {
            let missing = MAX_BATCH - batch.len();
            tokio::select! {
                // Cancel-safe: if another branch completes first, no span was received.
                received = self.receiver.recv_many(&mut batch, missing) => {
                    if received == 0 {
                        break;
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break,
                () = wait_stopped(&mut self.stopped), if !self.receiver.is_closed() => {
                    self.receiver.close();
                }
            }
            deadline.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
        }
        batch
    }

    /// Sends a batch, and retries after temporary errors. Returns the last error.
    async fn deliver(&mut self, batch: Vec<Span>) -> Result<ExportTracePartialSuccess, SendError> {
        let encoded = self.encode(batch);
        let mut delays = RETRY_DELAYS.into_iter();
        loop {
            let error = match self.send(encoded.clone()).await {
                Ok(partial) => return Ok(partial),
                Err(error) => error,
            };
            let may_retry = error.is_temporary && self.stopped.borrow().is_none();
            let Some(delay) = delays.next().filter(|_| may_retry) else {
                return Err(error);
            };
            self.warn(&error, "spans can't be exported, and are sent again");
            tokio::select! {
                () = sleep(delay) => {}
                () = wait_stopped(&mut self.stopped) => {}
            }
        }
    }

    /// Sends a batch once. Once the exporter is stopped, the attempt ends at the deadline.
    async fn send(&mut self, batch: Bytes) -> Result<ExportTracePartialSuccess, SendError> {
        let deadline_passed = async {
            wait_stopped(&mut self.stopped).await;
            let deadline = *self.stopped.borrow();
            sleep_until(deadline.unwrap_or_else(Instant::now)).await;
        };
        tokio::select! {
            result = self.collector.send(batch) => result,
            () = deadline_passed => Err(SendError {
                cause: "no response before the end of this process".into(),
                is_temporary: false,
            }),
        }
    }

    fn encode(&self, spans: Vec<Span>) -> Bytes {
        let scope = InstrumentationScope {
            name: "peername".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let scope_spans = vec![ScopeSpans {
            scope: Some(scope),
            spans,
        }];
        let resource_spans = vec![ResourceSpans {
            resource: Some(self.resource.clone()),
            scope_spans,
        }];
        let request = ExportTraceServiceRequest { resource_spans };
        request.encode_to_vec().into()
    }

    fn count_delivered(&self, spans: usize, partial: &ExportTracePartialSuccess) {
        let rejected = usize::try_from(partial.rejected_spans)
            .unwrap_or_default()
            .min(spans);
        self.counters.count_exported(spans - rejected);
        if rejected > 0 {
            self.counters.count_dropped(rejected);
            let reason: String = partial
                .error_message
                .chars()
                .take(MAX_REASON)
                .flat_map(char::escape_debug)
                .collect();
            let error = SendError {
                cause: format!("it rejects some of them: {reason}").into(),
                is_temporary: false,
            };
            self.warn(&error, "spans dropped");
        }
    }

    fn warn(&self, error: &SendError, what: &str) {
        if let Some(suppressed) = FAILURE_WARNINGS.pass() {
            let (uri, cause) = (self.collector.uri(), &error.cause);
            tracing::warn!(
                suppressed,
                "{what}: the collector at {uri}: {cause}; does --otlp name its receiver of OTLP over HTTP, and is it running?"
            );
        }
    }
}

async fn wait_stopped(stopped: &mut watch::Receiver<Option<Instant>>) {
    // If the exporter was dropped without being stopped, the task ends only once its queue is closed.
    if stopped.wait_for(Option::is_some).await.is_err() {
        std::future::pending::<()>().await;
    }
}

static FAILURE_WARNINGS: Throttle = Throttle::new();

/// The default of OpenTelemetry's SDKs (OTEL_BSP_MAX_EXPORT_BATCH_SIZE).
const MAX_BATCH: usize = 512;
/// The time from the first span of a batch to its sending. It is shorter than the 5 s of OpenTelemetry's SDKs
/// (OTEL_BSP_SCHEDULE_DELAY): requests are visible soon, and one request to the collector per second costs little.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// The delays before retries: together long enough for a collector to restart.
const RETRY_DELAYS: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];
/// The longest time that the end of the process waits for the collector.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);
/// The maximum number of characters of a collector's error message in the log.
const MAX_REASON: usize = 256;

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::audit::otlp::messages::ExportTraceServiceResponse;

    /// Starts the exporter to a collector that sends these responses, and then none.
    async fn start(responses: Vec<(u16, Vec<u8>)>) -> SpanExporter {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            for (status, body) in responses {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 4096];
                assert_ne!(stream.read(&mut request).await.unwrap(), 0);
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                stream
                    .write_all(&[head.as_bytes(), &body].concat())
                    .await
                    .unwrap();
            }
            let _silent = listener.accept().await;
            std::future::pending::<()>().await;
        });
        SpanExporter::start(&url.parse().unwrap()).unwrap()
    }

    fn push(queue: &SpanQueue, spans: usize) {
        for _ in 0..spans {
            queue.push(Span::default());
        }
    }

    async fn wait_totals(queue: &SpanQueue, expected: [u64; 2]) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while queue.counters.totals() != expected {
            assert!(Instant::now() < deadline, "{:?}", queue.counters.totals());
            sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn batch_is_sent_again_after_a_temporary_failure_and_rejected_spans_are_counted() {
        let partial = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: 2,
                error_message: "too old".to_owned(),
            }),
        };
        let responses = vec![(503, Vec::new()), (200, partial.encode_to_vec())];
        let exporter = start(responses).await;
        push(&exporter.queue, 5);
        wait_totals(&exporter.queue, [3, 2]).await;
    }

    #[tokio::test]
    async fn batch_that_is_refused_for_good_is_dropped_at_once() {
        let exporter = start(vec![(400, Vec::new()), (200, Vec::new())]).await;
        push(&exporter.queue, 2);
        wait_totals(&exporter.queue, [0, 2]).await;
        push(&exporter.queue, 3);
        wait_totals(&exporter.queue, [3, 2]).await;
    }

    #[tokio::test]
    async fn end_of_the_process_waits_for_a_silent_collector_for_a_bounded_time() {
        let exporter = start(Vec::new()).await;
        let queue = exporter.queue();
        push(&queue, MAX_BATCH + 1);
        let started = Instant::now();
        exporter.stop().await;
        let took = started.elapsed();
        assert!(took >= FLUSH_LIMIT && took < FLUSH_LIMIT * 3, "{took:?}");
        assert_eq!(queue.counters.totals(), [0, MAX_BATCH as u64 + 1]);
    }
}
