//! The throttled warnings about check services.

use std::collections::HashMap;

use parking_lot::Mutex;
use peername_sys::throttle::Throttle;
use tracing::warn;

use super::config::service::Service;
use super::verdict::{AuthzError, Decision};

/// The failure of a service that was asked before the one that decides.
pub(super) struct ServiceFailure<'a> {
    pub(super) service: &'a Service,
    pub(super) error: AuthzError,
}

/// When each kind of warning was logged last.
#[derive(Debug, Default)]
pub(super) struct CheckWarnings {
    /// By the code of the failure, so that none hides another.
    failures: Mutex<HashMap<&'static str, Throttle>>,
    failovers: Throttle,
    refused_mutations: Throttle,
}

impl CheckWarnings {
    /// Warns that a request is decided without a check, because these services failed.
    pub(super) fn warn_of_failure(&self, services: &[Service], error: &AuthzError, allows: bool) {
        let code = error.code();
        let Some(suppressed) = self.failures.lock().entry(code).or_default().pass() else {
            return;
        };
        let services: Vec<_> = services.iter().map(ToString::to_string).collect();
        let service = services.join(", ");
        let outcome = if allows { "goes on" } else { "is denied" };
        warn!(
            code,
            suppressed, service, "a request {outcome} unchecked: {error}"
        );
    }

    /// Warns that a service decides in place of one that can't be asked. No response to a client shows this.
    pub(super) fn warn_of_failover(&self, failure: &ServiceFailure<'_>, decided_by: &Service) {
        if let Some(suppressed) = self.failovers.pass() {
            let ServiceFailure { service, error } = failure;
            warn!(
                code = error.code(),
                suppressed,
                %service,
                "the check service can't be asked, and {decided_by} decides in its place: {error}"
            );
        }
    }

    /// Warns of header changes that were left out.
    pub(super) fn warn_of_refused_mutations(&self, decision: &Decision) {
        let Decision::Allow(mutations) = decision else {
            return;
        };
        if mutations.refused() > 0
            && let Some(suppressed) = self.refused_mutations.pass()
        {
            let refused = mutations.refused();
            warn!(
                refused,
                suppressed, "the check service asked for changes of headers that it may not make"
            );
        }
    }
}
