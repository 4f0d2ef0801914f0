//! What the subject of the comparison has to reach.

use std::fmt;

use crate::report::number;

/// A bound on a metric, or on its ratio to a peer's.
pub(crate) struct Target {
    /// Whose it is, where that is not the subject of the comparison.
    pub(crate) of: Option<&'static str>,
    pub(crate) task: &'static str,
    pub(crate) metric: &'static str,
    pub(crate) peer: Option<&'static str>,
    bound: Bound,
}

enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

pub(crate) const TARGETS: &[Target] = &[
    Target {
        of: None,
        task: "pingpong",
        metric: "CPU us/echo",
        peer: Some("nginx"),
        bound: Bound::AtMost(1.0),
    },
    Target {
        of: None,
        task: "bulk-1",
        metric: "CPU s/GB",
        peer: Some("nginx"),
        bound: Bound::AtMost(0.5),
    },
    Target {
        of: None,
        task: "bulk-4",
        metric: "CPU s/GB",
        peer: Some("nginx"),
        bound: Bound::AtMost(0.5),
    },
    Target {
        of: None,
        task: "churn",
        metric: "connections/s",
        peer: Some("haproxy"),
        bound: Bound::AtLeast(1.0),
    },
    Target {
        of: None,
        task: "idle",
        metric: "KiB/connection",
        peer: None,
        bound: Bound::AtMost(4.0),
    },
    Target {
        of: None,
        task: "udp-echo",
        metric: "echoes/s",
        peer: Some("direct"),
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: None,
        task: "udp-echo",
        metric: "CPU us/echo",
        peer: Some("naive"),
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: None,
        task: "udp-echo-window",
        metric: "echoes/s",
        peer: Some("direct"),
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: None,
        task: "udp-echo-window",
        metric: "CPU us/echo",
        peer: Some("naive"),
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: Some("preload"),
        task: "churn",
        metric: "connections/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("preload"),
        task: "pingpong",
        metric: "echoes/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("preload"),
        task: "bulk-1",
        metric: "MB/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("notify"),
        task: "churn",
        metric: "connections/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.65),
    },
    Target {
        of: Some("notify"),
        task: "pingpong",
        metric: "echoes/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("notify"),
        task: "bulk-1",
        metric: "MB/s",
        peer: Some("plain"),
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("netns"),
        task: "churn",
        metric: "connections/s",
        peer: Some("peername"),
        bound: Bound::AtLeast(0.9),
    },
    Target {
        of: Some("netns"),
        task: "pingpong",
        metric: "echoes/s",
        peer: Some("peername"),
        bound: Bound::AtLeast(0.9),
    },
    Target {
        of: Some("netns"),
        task: "bulk-1",
        metric: "MB/s",
        peer: Some("peername"),
        bound: Bound::AtLeast(0.9),
    },
];

impl Target {
    pub(crate) fn is_met(&self, value: f64) -> bool {
        match self.bound {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bound) = match self.bound {
            Bound::AtMost(bound) => ("<=", bound),
            Bound::AtLeast(bound) => (">=", bound),
        };
        if let Some(of) = self.of {
            write!(f, "{of}: ")?;
        }
        write!(f, "{} {} {sign} {}", self.task, self.metric, number(bound))?;
        match self.peer {
            Some(peer) => write!(f, " x {peer}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive() {
        let at_most = target(Bound::AtMost(1.0));
        assert!(at_most.is_met(1.0) && !at_most.is_met(1.01));
        let at_least = target(Bound::AtLeast(1.0));
        assert!(at_least.is_met(1.0) && !at_least.is_met(0.99));
    }

    #[test]
    fn targets_are_written_as_they_are_meant() {
        assert_eq!(
            target(Bound::AtMost(4.0)).to_string(),
            "idle KiB/connection <= 4.00"
        );
    }

    fn target(bound: Bound) -> Target {
        Target {
            of: None,
            task: "idle",
            metric: "KiB/connection",
            peer: None,
            bound,
        }
    }
}
