//! What a service said, whatever it speaks.

use std::sync::Arc;
use std::time::Duration;

use super::header_mutations::Changes;
use super::verdict::{Decision, Denial};

/// A decision, and for how long it may stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The decision.
    pub decision: Decision,
    /// What the service says about keeping it.
    pub keep: Keep,
}

impl Answer {
    pub(crate) fn allow(changes: Changes) -> Self {
        Self {
            decision: Decision::Allow(Arc::new(changes)),
            keep: Keep::default(),
        }
    }

    pub(crate) fn deny(denial: Denial) -> Self {
        Self {
            decision: Decision::Deny(Arc::new(denial)),
            keep: Keep::default(),
        }
    }

    pub(crate) fn kept(self, keep: Keep) -> Self {
        Self { keep, ..self }
    }
}

/// How long a service lets its answer stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// It doesn't say.
    #[default]
    AsConfigured,
    /// So long at most; not at all for zero.
    AtMost(Duration),
}

impl Keep {
    /// Of the value of a Cache-Control field (RFC 9111 §5.2.2). Of two directives the stricter holds, and what
    /// is not understood of one that is known forbids.
    pub(crate) fn of(cache_control: &str) -> Self {
        let directives = cache_control.split(',').map(str::trim);
        directives.fold(Self::AsConfigured, |keep, directive| {
            let (name, value) = directive.split_once('=').unwrap_or((directive, ""));
            match name.trim().to_ascii_lowercase().as_str() {
                "no-store" | "no-cache" | "private" => keep.and(Duration::ZERO),
                "max-age" => {
                    let seconds = value.trim().trim_matches('"').parse();
                    keep.and(Duration::from_secs(u64::from(seconds.unwrap_or(0_u32))))
                }
                _ => keep,
            }
        })
    }

    /// Both.
    pub(crate) fn and(self, most: Duration) -> Self {
        match self {
            Self::AsConfigured => Self::AtMost(most),
            Self::AtMost(other) => Self::AtMost(other.min(most)),
        }
    }

    /// For how long, when `configured` is the most.
    pub(crate) fn within(self, configured: Duration) -> Duration {
        match self {
            Self::AsConfigured => configured,
            Self::AtMost(most) => most.min(configured),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_control_bounds_and_forbids() {
        let seconds = |seconds| Keep::AtMost(Duration::from_secs(seconds));
        for (written, keep) in [
            ("", Keep::AsConfigured),
            ("public", Keep::AsConfigured),
            ("max-age=5", seconds(5)),
            ("public, Max-Age=\"5\"", seconds(5)),
            ("max-age=5, max-age=3", seconds(3)),
            ("max-age=5, no-store", seconds(0)),
            ("no-cache", seconds(0)),
            ("max-age", seconds(0)),
            ("max-age=-1", seconds(0)),
            ("max-age=99999999999999999999", seconds(0)),
        ] {
            assert_eq!(Keep::of(written), keep, "{written}");
        }
        assert_eq!(
            seconds(9).within(Duration::from_secs(3)),
            Duration::from_secs(3)
        );
    }
}
