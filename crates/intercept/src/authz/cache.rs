//! The cache of the check service's responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::HeaderName;
use moka::Expiry;

use super::config::sent_headers::SentHeaders;
use super::request::{AuthzRequest, BodyPrefix};
use super::response::AuthzResponse;
use super::verdict::{AuthzError, Decision};
use crate::request::trace_context::is_trace_header;

/// Responses by request, of all workers together. Single flight: equal requests at the same time are sent once.
#[derive(Debug)]
pub(crate) struct Cache {
    answers: moka::future::Cache<CacheKey, CachedDecision>,
    allow_for: Duration,
    deny_for: Duration,
}

/// The cache key: everything that the service is sent and could decide by, byte for byte. It leaves out the request id,
/// the trace context, and the ports of client and balancer, which differ between requests that are otherwise equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey(Box<[u8]>);

#[derive(Clone, Debug)]
struct CachedDecision {
    decision: Decision,
    lifetime: Duration,
}

/// Why a result is not cached. Errors never are.
#[derive(Debug)]
enum NotCached {
    Uncacheable(Decision),
    Failed(AuthzError),
}

impl Cache {
    /// Caches an allowed request for `allow_for`, and a denial for a shorter time.
    pub(crate) fn new(allow_for: Duration) -> Self {
        let answers = moka::future::Cache::builder()
            .max_capacity(MAX_MEMORY)
            .weigher(|key: &CacheKey, cached: &CachedDecision| weight(key, &cached.decision))
            .expire_after(OwnLifetime)
            .build();
        Self {
            answers,
            allow_for,
            deny_for: allow_for.min(MAX_DENIAL_LIFETIME),
        }
    }

    /// The decision for `key`, from `ask` if none is cached, and whether it was cached (or in flight).
    ///
    /// # Errors
    ///
    /// Those of `ask`, for all callers that waited for it.
    pub(crate) async fn get<A>(
        &self,
        key: CacheKey,
        ask: impl Fn() -> A,
    ) -> Result<(Decision, bool), AuthzError>
    where
        A: Future<Output = Result<AuthzResponse, AuthzError>>,
    {
        let mut asked = false;
        let init = async {
            asked = true;
            match ask().await {
                Ok(answer) => self.to_cached(answer),
                Err(failure) => Err(NotCached::Failed(failure)),
            }
        };
        let result = self.answers.try_get_with(key, init).await;
        match result.as_ref().map_err(Arc::as_ref) {
            Ok(cached) => Ok((cached.decision.clone(), !asked)),
            Err(NotCached::Failed(failure)) => Err(failure.clone()),
            Err(NotCached::Uncacheable(decision)) if asked => Ok((decision.clone(), false)),
            // The response was for that one request alone.
            Err(NotCached::Uncacheable(_)) => ask().await.map(|answer| (answer.decision, false)),
        }
    }

    fn to_cached(&self, response: AuthzResponse) -> Result<CachedDecision, NotCached> {
        let max = match response.decision {
            Decision::Allow(_) => self.allow_for,
            Decision::Deny(_) => self.deny_for,
        };
        let (decision, lifetime) = (response.decision, response.lifetime.within(max));
        match lifetime.is_zero() {
            true => Err(NotCached::Uncacheable(decision)),
            false => Ok(CachedDecision { decision, lifetime }),
        }
    }
}

impl CacheKey {
    /// `None` if the request has a body, though nothing of it has come so far: it would be let through unseen.
    pub(crate) fn new(request: &AuthzRequest<'_>, sent: &SentHeaders) -> Option<Self> {
        let has_body = |body: BodyPrefix<'_>| !body.bytes.is_empty() || body.truncated;
        if request.body.is_some_and(has_body) {
            return None;
        }
        let mut key = Vec::with_capacity(512);
        let mut put = |field: &[u8]| {
            key.extend_from_slice(&field.len().to_le_bytes());
            key.extend_from_slice(field);
        };
        let AuthzRequest {
            kind,
            client,
            peer,
            connect,
            sni,
            alpn,
            version,
            method,
            scheme,
            to,
            path_and_query,
            headers,
            body_size,
            request_id: _,
            traceparent: _,
            body: _,
        } = request;
        let connect = connect.map(|connect| connect.to_string());
        put(format!(
            "{kind:?} {} {} {version:?} {body_size:?}",
            client.ip(),
            peer.ip()
        )
        .as_bytes());
        for optional in [connect.as_deref(), *sni, *alpn] {
            put(optional.map_or(b"-".as_slice(), |_| b"+"));
            put(optional.unwrap_or_default().as_bytes());
        }
        put(method.as_str().as_bytes());
        put(scheme.as_bytes());
        put(to.to_string().as_bytes());
        put(path_and_query.as_bytes());
        let is_compared = |name: &HeaderName| sent.includes(name) && !is_trace_header(name);
        for (name, value) in headers.iter().filter(|(name, _)| is_compared(name)) {
            put(name.as_str().as_bytes());
            put(value.as_bytes());
        }
        Some(Self(key.into()))
    }
}

/// Expires each entry after its own lifetime.
struct OwnLifetime;

impl Expiry<CacheKey, CachedDecision> for OwnLifetime {
    fn expire_after_create(
        &self,
        _: &CacheKey,
        cached: &CachedDecision,
        _: Instant,
    ) -> Option<Duration> {
        Some(cached.lifetime)
    }
}

fn weight(CacheKey(key): &CacheKey, decision: &Decision) -> u32 {
    let answer = match decision {
        Decision::Allow(changes) => changes.weight(),
        Decision::Deny(denial) => denial.weight(),
    };
    u32::try_from(key.len() + answer + OVERHEAD).unwrap_or(u32::MAX)
}

/// Bytes of all entries. Clients choose what is in a request, so a limit on the number of entries bounds no memory.
const MAX_MEMORY: u64 = 16 << 20;
/// Approximate bytes that an entry takes beside its key and response.
const OVERHEAD: usize = 512;
/// The longest lifetime of a cached denial. It is short, because people wait for a denial to be lifted.
const MAX_DENIAL_LIFETIME: Duration = Duration::from_secs(5);
