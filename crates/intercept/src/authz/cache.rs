//! The cache of the check service's responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use moka::Expiry;

use super::response::AuthzResponse;
use super::verdict::{AuthzError, DecidedBy, Decision};

/// The check service's decisions by cache key, for all workers together. Single flight: while the service is queried about a
/// request, equal requests wait for that decision, and are sent to the service only if it is not cacheable.
#[derive(Debug)]
pub(crate) struct Cache {
    decisions: moka::future::Cache<CacheKey, CachedDecision>,
    allow_for: Duration,
    deny_for: Duration,
}

/// The cache key ([`AuthzRequest::to_key`](super::request::AuthzRequest::to_key)).
pub(crate) type CacheKey = Box<[u8]>;

#[derive(Clone, Debug)]
struct CachedDecision {
    decision: Decision,
    lifetime: Duration,
}

/// A result that is not cached.
#[derive(Debug)]
enum NotCached {
    /// The service forbids caching its decision.
    Uncacheable(Decision),
    Failed(AuthzError),
}

impl Cache {
    /// Makes a cache that keeps decisions for `allow_for` at most, and denials no longer than [`MAX_DENIAL_LIFETIME`]. The
    /// service can shorten both.
    pub(crate) fn new(allow_for: Duration) -> Self {
        let decisions = moka::future::Cache::builder()
            .max_capacity(MAX_MEMORY)
            .weigher(|key: &CacheKey, cached: &CachedDecision| weight(key, &cached.decision))
            .expire_after(PerEntryExpiry)
            .build();
        Self {
            decisions,
            allow_for,
            deny_for: allow_for.min(MAX_DENIAL_LIFETIME),
        }
    }

    /// Gets the decision for `key`: the cached one, or that of an equal request in flight, or else that of `ask`.
    ///
    /// # Errors
    ///
    /// The error of `ask`, for each caller that waited for it.
    pub(crate) async fn get<A>(
        &self,
        key: CacheKey,
        ask: impl Fn() -> A,
    ) -> Result<(Decision, DecidedBy), AuthzError>
    where
        A: Future<Output = Result<AuthzResponse, AuthzError>>,
    {
        let mut decided_by = DecidedBy::Cache;
        let init = async {
            decided_by = DecidedBy::Service;
            match ask().await {
                Ok(response) => self.to_cached(response),
                Err(error) => Err(NotCached::Failed(error)),
            }
        };
        let result = self.decisions.try_get_with(key, init).await;
        match (result.as_ref().map_err(Arc::as_ref), decided_by) {
            (Ok(cached), decided_by) => Ok((cached.decision.clone(), decided_by)),
            (Err(NotCached::Failed(error)), _) => Err(error.clone()),
            // The decision was made for an equal request in flight, and is for that request only.
            (Err(NotCached::Uncacheable(_)), DecidedBy::Cache) => {
                let response = ask().await?;
                Ok((response.decision, DecidedBy::Service))
            }
            (Err(NotCached::Uncacheable(decision)), decided_by) => {
                Ok((decision.clone(), decided_by))
            }
        }
    }

    fn to_cached(&self, response: AuthzResponse) -> Result<CachedDecision, NotCached> {
        let max = match response.decision {
            Decision::Allow(_) => self.allow_for,
            Decision::Deny(_) => self.deny_for,
        };
        let (decision, lifetime) = (response.decision, response.lifetime.in_cache(max));
        if lifetime.is_zero() {
            return Err(NotCached::Uncacheable(decision));
        }
        Ok(CachedDecision { decision, lifetime })
    }
}

/// Expires each entry after the lifetime of its decision.
struct PerEntryExpiry;

impl Expiry<CacheKey, CachedDecision> for PerEntryExpiry {
    fn expire_after_create(
        &self,
        _: &CacheKey,
        cached: &CachedDecision,
        _: Instant,
    ) -> Option<Duration> {
        Some(cached.lifetime)
    }
}

fn weight(key: &CacheKey, decision: &Decision) -> u32 {
    let decision = match decision {
        Decision::Allow(changes) => changes.weight(),
        Decision::Deny(denial) => denial.weight(),
    };
    u32::try_from(key.len() + decision + ENTRY_OVERHEAD).unwrap_or(u32::MAX)
}

/// The maximum number of bytes of all entries. A maximum number of entries would not bound memory: clients choose the size of a
/// key.
const MAX_MEMORY: u64 = 16 << 20;
/// Approximate bytes of an entry beside its key and decision.
const ENTRY_OVERHEAD: usize = 512;
/// The longest lifetime of a cached denial. It is short, because people wait for a denial to be lifted.
const MAX_DENIAL_LIFETIME: Duration = Duration::from_secs(5);
