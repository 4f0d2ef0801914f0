//! Exports a span for each request by the OpenTelemetry protocol: OTLP over HTTP, in its binary encoding.
//!
//! The workers queue spans, and one task outside of the workers sends them in batches. The queue is bounded: a collector that
//! is slow or can't be reached does not delay requests, but spans are dropped, and counted.

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
