//! Retries: which requests are sent again, and the budget of their origin.
//!
//! A request is sent twice at most. That alone would double the load of an origin that refuses everything, so each origin has
//! a budget for retries beside (as Finagle's and Envoy's retry budgets).

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use moka::sync::Cache;
use tower::retry::budget::{Budget, TpsBudget};

use super::error::UpstreamError;
use super::request_body::RequestBody;
use crate::host::HostPort;

/// The budgets of the origins that were asked recently.
#[derive(Debug)]
pub(super) struct RetryBudgets(Cache<HostPort, Arc<TpsBudget>>);

impl RetryBudgets {
    pub(super) fn new(max_origins: u64) -> Self {
        let budgets = Cache::builder()
            .max_capacity(max_origins)
            .time_to_idle(BUDGET_WINDOW);
        Self(budgets.build())
    }

    /// Counts a request to this origin, which adds to its budget.
    pub(super) fn deposit(&self, origin: &HostPort) {
        self.get(origin).deposit();
    }

    /// Takes a retry from the budget of this origin. False if it is used up.
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

/// A copy of a request that is being sent: its head, and what is sent of its body.
#[derive(Debug)]
pub(super) struct RetryCopy(Request<RequestBody>);

impl RetryCopy {
    pub(super) fn new(request: &Request<RequestBody>) -> Self {
        let mut copy = Request::new(request.body().keep_for_retry());
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        *copy.headers_mut() = request.headers().clone();
        // How the client spells the names of headers.
        *copy.extensions_mut() = request.extensions().clone();
        Self(copy)
    }

    /// Frees the copy: the origin has answered.
    pub(super) fn discard(self) {
        self.0.body().discard_kept();
    }

    /// The request for a retry. `None` if it may have been processed, or if more of its body was sent than is kept.
    ///
    /// `reused` tells whether the connection had been used before. An origin may close an idle connection at any time; then
    /// only HTTP/2 can tell whether it processed the request, and a proxy must not repeat it unless its method is
    /// idempotent (RFC 9110, section 9.2.2).
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

/// How long a request adds to the budget of its origin.
const BUDGET_WINDOW: Duration = Duration::from_secs(10);
/// Retries to an origin that is asked rarely: a client that asks one thing after another has each of them retried.
const MIN_RETRIES_PER_SECOND: u32 = 10;
/// Retries beside these, as a share of the requests: an origin that refuses everything gets this much more load.
const MAX_RETRY_RATIO: f32 = 0.2;
