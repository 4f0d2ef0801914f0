//! What the subject of the comparison has to reach.

use std::fmt;

use crate::report::number;

/// A bound on a metric, or on its ratio to a peer's.
pub(crate) struct Target {
    /// Whose it is, where that is not the subject of the comparison.
    pub(crate) of: Option<&'static str>,
    pub(crate) task: &'static str,
    pub(crate) metric: &'static str,
    /// The best of these, round by round; nobody for a bound on the metric itself.
    pub(crate) peers: &'static [&'static str],
    pub(crate) bound: Bound,
}

pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

pub(crate) const TARGETS: &[Target] = &[
    Target {
        of: None,
        task: "pingpong",
        metric: "CPU us/echo",
        peers: &["nginx"],
        bound: Bound::AtMost(1.0),
    },
    Target {
        of: None,
        task: "bulk-1",
        metric: "CPU s/GB",
        peers: &["nginx"],
        bound: Bound::AtMost(0.5),
    },
    Target {
        of: None,
        task: "bulk-4",
        metric: "CPU s/GB",
        peers: &["nginx"],
        bound: Bound::AtMost(0.5),
    },
    Target {
        of: None,
        task: "churn",
        metric: "connections/s",
        peers: &["haproxy"],
        bound: Bound::AtLeast(1.0),
    },
    Target {
        of: None,
        task: "idle",
        metric: "KiB/connection",
        peers: &[],
        bound: Bound::AtMost(4.0),
    },
    Target {
        of: None,
        task: "udp-echo",
        metric: "echoes/s",
        peers: &["direct"],
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: None,
        task: "udp-echo",
        metric: "CPU us/echo",
        peers: &["naive"],
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: None,
        task: "udp-echo-window",
        metric: "echoes/s",
        peers: &["direct"],
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: None,
        task: "udp-echo-window",
        metric: "CPU us/echo",
        peers: &["naive"],
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: Some("kernel"),
        task: "udp-echo",
        metric: "echoes/s",
        peers: &["direct"],
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: Some("kernel"),
        task: "udp-echo",
        metric: "CPU us/echo of all",
        peers: &["naive"],
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: Some("kernel"),
        task: "udp-echo-window",
        metric: "echoes/s",
        peers: &["direct"],
        bound: Bound::AtLeast(0.6),
    },
    Target {
        of: Some("kernel"),
        task: "udp-echo-window",
        metric: "CPU us/echo of all",
        peers: &["naive"],
        bound: Bound::AtMost(0.6),
    },
    Target {
        of: Some("preload"),
        task: "churn",
        metric: "connections/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("preload"),
        task: "pingpong",
        metric: "echoes/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("preload"),
        task: "bulk-1",
        metric: "MB/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("notify"),
        task: "churn",
        metric: "connections/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.65),
    },
    Target {
        of: Some("notify"),
        task: "pingpong",
        metric: "echoes/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("notify"),
        task: "bulk-1",
        metric: "MB/s",
        peers: &["plain"],
        bound: Bound::AtLeast(0.95),
    },
    Target {
        of: Some("netns"),
        task: "churn",
        metric: "connections/s",
        peers: &["peername"],
        bound: Bound::AtLeast(0.9),
    },
    Target {
        of: Some("netns"),
        task: "pingpong",
        metric: "echoes/s",
        peers: &["peername"],
        bound: Bound::AtLeast(0.9),
    },
    Target {
        of: Some("netns"),
        task: "bulk-1",
        metric: "MB/s",
        peers: &["peername"],
        bound: Bound::AtLeast(0.9),
    },
];

impl Target {
    /// The one of several peers' figures that is hardest to reach.
    pub(crate) fn best(&self, figures: impl Iterator<Item = f64>) -> Option<f64> {
        figures.reduce(match self.bound {
            Bound::AtMost(_) => f64::min,
            Bound::AtLeast(_) => f64::max,
        })
    }

    /// Per cent of the bound.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let (Bound::AtMost(bound) | Bound::AtLeast(bound)) = self.bound;
        100.0 * value / bound
    }

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
        match self.peers {
            [] => Ok(()),
            [peer] => write!(f, " x {peer}"),
            peers => write!(f, " x the best of {}", peers.join(", ")),
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
    fn a_share_is_of_the_bound() {
        assert_eq!(target(Bound::AtMost(0.5)).share(0.75), 150.0);
    }

    #[test]
    fn targets_are_written_as_they_are_meant() {
        assert_eq!(
            target(Bound::AtMost(4.0)).to_string(),
            "idle KiB/connection <= 4.00"
        );
    }

    #[test]
    fn the_best_peer_is_the_one_that_is_hardest_to_reach() {
        let figures = [2.0, 1.0, 3.0];
        assert_eq!(
            target(Bound::AtMost(0.4)).best(figures.into_iter()),
            Some(1.0)
        );
        assert_eq!(
            target(Bound::AtLeast(0.4)).best(figures.into_iter()),
            Some(3.0)
        );
        assert_eq!(target(Bound::AtMost(0.4)).best(std::iter::empty()), None);
    }

    fn target(bound: Bound) -> Target {
        Target {
            of: None,
            task: "idle",
            metric: "KiB/connection",
            peers: &[],
            bound,
        }
    }
}
