//! Exports a span for each request by the OpenTelemetry protocol: OTLP over HTTP, in its binary encoding.
//!
//! Spans are queued by the workers, and sent in batches by one task of the control side. The queue is bounded: a collector that
//! is slow or can't be reached delays no request, and costs spans, which are counted.

mod collector;
mod collector_url;
mod environment;
mod exporter;
pub(crate) mod messages;
mod queue;

pub use self::{
    collector_url::{CollectorUrl, CollectorUrlError},
    environment::ExporterError,
    exporter::SpanExporter,
    queue::SpanQueue,
};
