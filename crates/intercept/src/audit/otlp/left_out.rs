//! What a build without the feature `opentelemetry` has instead: types without a value.

use std::str::FromStr;

use prometheus_client::registry::Registry;

use crate::audit::AuditRecord;

/// The URL of a collector; no text is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectorUrl {}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this build lacks `--otlp`: build with --features opentelemetry")]
pub struct CollectorUrlError;

/// Why an exporter could not be started; none is.
#[derive(Debug, thiserror::Error)]
pub enum ExporterError {}

/// The exporter.
#[derive(Debug)]
pub enum SpanExporter {}

/// The queue of spans.
#[derive(Clone, Debug)]
pub enum SpanQueue {}

impl FromStr for CollectorUrl {
    type Err = CollectorUrlError;

    fn from_str(_: &str) -> Result<Self, CollectorUrlError> {
        Err(CollectorUrlError)
    }
}

impl SpanExporter {
    /// Starts the exporter.
    ///
    /// # Errors
    ///
    /// None: there is no URL.
    pub fn start(url: &CollectorUrl) -> Result<Self, ExporterError> {
        match *url {}
    }

    /// Where requests leave their spans.
    pub fn queue(&self) -> SpanQueue {
        match *self {}
    }

    /// Sends what is queued, and ends.
    #[expect(
        clippy::unused_async,
        reason = "the exporter of other builds waits here"
    )]
    pub async fn stop(self) {
        match self {}
    }
}

impl SpanQueue {
    pub(crate) fn register(&self, _: &mut Registry) {
        match *self {}
    }
}

impl AuditRecord {
    /// Queues the span of the request.
    pub(crate) fn export(&self, spans: &SpanQueue) {
        match *spans {}
    }
}
