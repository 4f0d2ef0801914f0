//! What the subject of the comparison has to reach.

use std::fmt;

use crate::report::number;

/// A bound on a metric, or on its ratio to a peer's.
pub(crate) struct Target {
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
        task: "pingpong",
        metric: "CPU us/echo",
        peer: Some("nginx"),
        bound: Bound::AtMost(1.0),
    },
    Target {
        task: "bulk-1",
        metric: "CPU s/GB",
        peer: Some("nginx"),
        bound: Bound::AtMost(0.5),
    },
    Target {
        task: "bulk-4",
        metric: "CPU s/GB",
        peer: Some("nginx"),
        bound: Bound::AtMost(0.5),
    },
    Target {
        task: "churn",
        metric: "connections/s",
        peer: Some("haproxy"),
        bound: Bound::AtLeast(1.0),
    },
    Target {
        task: "idle",
        metric: "KiB/connection",
        peer: None,
        bound: Bound::AtMost(4.0),
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
        let [echo, .., churn, idle] = TARGETS else {
            panic!("fewer than three targets")
        };
        assert!(echo.is_met(1.0) && !echo.is_met(1.01));
        assert!(churn.is_met(1.0) && !churn.is_met(0.99));
        assert_eq!(idle.to_string(), "idle KiB/connection <= 4.00");
    }
}
