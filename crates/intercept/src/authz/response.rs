//! The response of a check service, in any protocol.

use std::sync::Arc;
use std::time::Duration;

use super::header_mutations::HeaderMutations;
use super::verdict::{AuthzError, Decision, Denial};

/// A decision, and how long it may be cached.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthzResponse {
    /// The decision.
    pub decision: Decision,
    /// How long the service allows it to be cached.
    pub lifetime: CacheLifetime,
}

impl AuthzResponse {
    /// Allows the request with these changes of its headers. The error is [`AuthzError::Malformed`], if not all of them can be
    /// made.
    pub(crate) fn allow(changes: HeaderMutations) -> Result<Self, AuthzError> {
        if changes.is_incomplete() {
            return Err(AuthzError::Malformed(
                "changes of the request's headers that can't all be made: an invalid value, or too many",
            ));
        }
        Ok(Self {
            decision: Decision::Allow(Arc::new(changes)),
            lifetime: CacheLifetime::default(),
        })
    }

    pub(crate) fn deny(denial: Denial) -> Self {
        Self {
            decision: Decision::Deny(Arc::new(denial)),
            lifetime: CacheLifetime::default(),
        }
    }

    pub(crate) fn with_lifetime(self, lifetime: CacheLifetime) -> Self {
        Self { lifetime, ..self }
    }
}

/// How long a service allows its response to be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheLifetime {
    /// The service does not limit it.
    #[default]
    AsConfigured,
    /// At most this long; zero forbids caching.
    AtMost(Duration),
}

impl CacheLifetime {
    /// Parses a Cache-Control field (RFC 9111 §5.2.2). The strictest directive counts, and an invalid value of a known
    /// directive forbids caching.
    pub(crate) fn parse(cache_control: &str) -> Self {
        cache_control
            .split(',')
            .map(str::trim)
            .fold(Self::AsConfigured, |lifetime, directive| {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                match name.trim().to_ascii_lowercase().as_str() {
                    "no-store" | "no-cache" | "private" => lifetime.limit(Duration::ZERO),
                    "max-age" => {
                        let seconds = value.trim().trim_matches('"').parse();
                        lifetime.limit(Duration::from_secs(u64::from(seconds.unwrap_or(0_u32))))
                    }
                    _ => lifetime,
                }
            })
    }

    fn limit(self, max: Duration) -> Self {
        match self {
            Self::AsConfigured => Self::AtMost(max),
            Self::AtMost(other) => Self::AtMost(other.min(max)),
        }
    }

    /// The lifetime in a cache whose configured lifetime is `configured`.
    pub(crate) fn in_cache(self, configured: Duration) -> Duration {
        match self {
            Self::AsConfigured => configured,
            Self::AtMost(max) => max.min(configured),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictest_cache_control_directive_counts() {
        let seconds = |seconds| CacheLifetime::AtMost(Duration::from_secs(seconds));
        for (written, lifetime) in [
            ("", CacheLifetime::AsConfigured),
            ("public", CacheLifetime::AsConfigured),
            ("max-age=5", seconds(5)),
            ("public, Max-Age=\"5\"", seconds(5)),
            ("max-age=5, max-age=3", seconds(3)),
            ("max-age=5, no-store", seconds(0)),
            ("no-cache", seconds(0)),
            ("max-age", seconds(0)),
            ("max-age=-1", seconds(0)),
            ("max-age=99999999999999999999", seconds(0)),
        ] {
            assert_eq!(CacheLifetime::parse(written), lifetime, "{written}");
        }
        let configured = Duration::from_secs(3);
        assert_eq!(seconds(9).in_cache(configured), configured);
    }
}
