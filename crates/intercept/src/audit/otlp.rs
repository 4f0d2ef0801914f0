//! Exports a span for each request by the OpenTelemetry protocol: OTLP over HTTP, in its binary encoding.
//!
//! Spans are queued by the workers, and sent in batches by one task of the control side. The queue is bounded: a collector that
//! is slow or can't be reached delays no request, and costs spans, which are counted.
//!
//! In a build without the feature these types have no values (`left_out`): its `--otlp` refuses every URL.

#[cfg(feature = "opentelemetry")]
mod collector;
#[cfg(feature = "opentelemetry")]
mod collector_url;
#[cfg(feature = "opentelemetry")]
mod environment;
#[cfg(feature = "opentelemetry")]
mod exporter;
#[cfg(not(feature = "opentelemetry"))]
mod left_out;
#[cfg(feature = "opentelemetry")]
pub(crate) mod messages;
#[cfg(feature = "opentelemetry")]
mod queue;

#[cfg(feature = "opentelemetry")]
pub use self::{
    collector_url::{CollectorUrl, CollectorUrlError},
    environment::ExporterError,
    exporter::SpanExporter,
    queue::SpanQueue,
};
#[cfg(not(feature = "opentelemetry"))]
pub use left_out::{CollectorUrl, CollectorUrlError, ExporterError, SpanExporter, SpanQueue};
