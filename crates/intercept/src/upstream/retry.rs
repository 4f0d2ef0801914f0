//! Retries: which requests are sent again, and the retry budget of each origin.
//!
//! A request is sent twice at most. This alone would double the load of an origin that refuses everything, so each origin also
//! has a retry budget, as in Finagle and Envoy.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use moka::sync::Cache;
use tower::retry::budget::{Budget, TpsBudget};

use super::error::UpstreamError;
use super::request_body::RequestBody;
use crate::host::HostPort;

/// The budgets of the origins to which requests were sent recently.
#[derive(Debug)]
pub(super) struct RetryBudgets(Cache<HostPort, Arc<TpsBudget>>);

impl RetryBudgets {
    pub(super) fn new(max_origins: u64) -> Self {
        Self(
            Cache::builder()
                .max_capacity(max_origins)
                .time_to_idle(BUDGET_WINDOW)
                .build(),
        )
    }

    /// Counts a request to this origin, which adds to its budget.
    pub(super) fn deposit(&self, origin: &HostPort) {
        self.get(origin).deposit();
    }

    /// Takes a retry from the budget of this origin. Returns `false` if the budget is used up.
    pub(super) fn withdraw(&self, origin: &HostPort) -> bool {
        self.get(origin).withdraw()
    }

    fn get(&self, origin: &HostPort) -> Arc<TpsBudget> {
        self.0.get_with_by_ref(origin, || {
            Arc::new(TpsBudget::new(
                BUDGET_WINDOW,
                MIN_RETRIES_PER_SECOND,
                MAX_RETRY_RATIO,
            ))
        })
    }
}

/// A copy of a request that is being sent: its head, and the bytes of its body that are sent.
#[derive(Debug)]
pub(super) struct RetryCopy(Request<RequestBody>);

impl RetryCopy {
    pub(super) fn new(request: &Request<RequestBody>) -> Self {
        let mut copy = Request::new(request.body().keep_for_retry());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        // The extensions have the client's spelling of header names.
        *copy.extensions_mut() = request.extensions().clone();
        Self(copy)
    }

    /// Frees the copy, after which there can be no retry.
    pub(super) fn discard(self) {
        self.0.body().discard_kept();
    }

    /// Returns the request for a retry; `None` if the origin may have processed it, or if more of its body was sent than is kept.
    ///
    /// `reused` tells whether the connection had been used before. An origin may close an idle connection at any time. Without
    /// HTTP/2 the proxy then does not know whether the request was processed, and may repeat only idempotent methods (RFC 9110,
    /// section 9.2.2).
    pub(super) fn after(self, error: &UpstreamError, reused: bool) -> Option<Request<RequestBody>> {
        let Self(mut request) = self;
        let may_repeat = match error {
            UpstreamError::Unprocessed(_) => true,
            UpstreamError::Closed => reused && request.method().is_idempotent(),
            _ => false,
        };
        (may_repeat && request.body_mut().rewind()).then_some(request)
    }
}

/// The time for which a request adds to the budget of its origin.
const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// The retries that are always allowed, so that the sequential requests of a single client can all be retried.
const MIN_RETRIES_PER_SECOND: u32 = 10;
/// Further retries, as a share of the requests: the additional load of an origin that refuses everything.
const MAX_RETRY_RATIO: f32 = 0.2;
