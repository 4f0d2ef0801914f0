//! The throttled warnings about check services.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

use parking_lot::Mutex;
use peername_sys::throttle::Throttle;
use tracing::warn;

use super::config::service::Service;
use super::verdict::{AuthzError, Decision};

/// The failure of a service that was asked before the one that decides.
pub(super) struct ServiceFailure<'a> {
    pub(super) service: &'a Service,
    pub(super) code: &'static str,
    pub(super) error: String,
}

/// When each kind of warning was logged last.
#[derive(Debug)]
pub(super) struct CheckWarnings {
    failures: Mutex<HashMap<Discriminant<AuthzError>, Throttle>>,
    failovers: Throttle,
    refused_mutations: Throttle,
}

impl CheckWarnings {
    pub(super) fn new() -> Self {
        Self {
            failures: Mutex::default(),
            failovers: Throttle::new(),
            refused_mutations: Throttle::new(),
        }
    }

    /// Warns that a request is decided without a check, because these services failed.
    pub(super) fn warn_of_failure(&self, services: &[Service], error: &AuthzError, allows: bool) {
        let Some(suppressed) = self.pass_failure(error) else {
            return;
        };
        let code = error.code();
        let services: Vec<_> = services.iter().map(ToString::to_string).collect();
        let service = services.join(", ");
        let outcome = if allows { "goes on" } else { "is denied" };
        warn!(
            code,
            suppressed, service, "a request {outcome} unchecked: {error}"
        );
    }

    /// Each kind of failure has a throttle of its own, so that none hides another.
    fn pass_failure(&self, error: &AuthzError) -> Option<u64> {
        let mut failures = self.failures.lock();
        failures.entry(discriminant(error)).or_default().pass()
    }

    /// Warns that a service decides in place of one that can't be asked. No response to a client shows this.
    pub(super) fn warn_of_failover(&self, failure: &ServiceFailure<'_>, decided_by: &Service) {
        if let Some(suppressed) = self.failovers.pass() {
            let ServiceFailure {
                service,
                code,
                error,
            } = failure;
            warn!(
                code,
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
