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
    /// Allows the request, changed so.
    ///
    /// # Errors
    ///
    /// [`AuthzError::Malformed`]: not all of the changes can be made.
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
    /// The service does not say.
    #[default]
    AsConfigured,
    /// At most for so long; not at all for zero.
    AtMost(Duration),
}

impl CacheLifetime {
    /// Parses the value of a Cache-Control field (RFC 9111 §5.2.2). Of two directives the stricter one holds, and an invalid
    /// value of a known directive forbids caching.
    pub(crate) fn parse(cache_control: &str) -> Self {
        cache_control
            .split(',')
            .map(str::trim)
            .fold(Self::AsConfigured, |lifetime, directive| {
                let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
                match name.trim().to_ascii_lowercase().as_str() {
                    "no-store" | "no-cache" | "private" => lifetime.min(Duration::ZERO),
                    "max-age" => {
                        let seconds = value.trim().trim_matches('"').parse();
                        lifetime.min(Duration::from_secs(u64::from(seconds.unwrap_or(0_u32))))
                    }
                    _ => lifetime,
                }
            })
    }

    /// The stricter of the two.
    pub(crate) fn min(self, max: Duration) -> Self {
        match self {
            Self::AsConfigured => Self::AtMost(max),
            Self::AtMost(other) => Self::AtMost(other.min(max)),
        }
    }

    /// The lifetime in a cache that is configured for `configured` at most.
    pub(crate) fn within(self, configured: Duration) -> Duration {
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
    fn cache_control_bounds_and_forbids() {
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
        assert_eq!(
            seconds(9).within(Duration::from_secs(3)),
            Duration::from_secs(3)
        );
    }
}
