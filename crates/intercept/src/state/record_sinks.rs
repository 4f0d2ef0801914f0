//! The consumers of the records of finished requests.

use std::sync::Arc;

use super::metrics::Metrics;
use crate::audit::AuditRecord;
use crate::audit::denials::Denials;
use crate::audit::failures::Failures;
use crate::audit::otlp::SpanQueue;

/// The metrics, and optionally the spans and the summaries of denials and failures. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordSinks {
    pub(crate) metrics: Arc<Metrics>,
    /// `None` unless spans are exported (`--otlp`).
    pub(crate) spans: Option<SpanQueue>,
    /// `None` unless denials are summed up.
    pub(crate) denials: Option<Arc<Denials>>,
    /// `None` unless failures are summed up.
    pub(crate) failures: Option<Arc<Failures>>,
}

impl RecordSinks {
    /// Begins the record's span, if spans are exported.
    pub(crate) fn begin_span(&self, record: &mut AuditRecord) {
        if self.spans.is_some() {
            record.begin_span();
        }
    }

    /// Counts a finished request, and writes its audit line.
    pub(crate) fn finish(&self, record: &AuditRecord) {
        self.metrics.count_request(record);
        record.write();
        if let Some(denials) = &self.denials {
            denials.count(record);
        }
        if let Some(failures) = &self.failures {
            failures.count(record);
        }
    }

    /// Exports the record's span, if spans are exported.
    pub(crate) fn export(&self, record: &AuditRecord) {
        if let Some(spans) = &self.spans {
            record.export(spans);
        }
    }
}
