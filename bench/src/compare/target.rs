//! Targets: bounds on metrics that a comparison checks.

use std::fmt;

use crate::compare::summary::format_number;

/// A bound on a metric, or on its ratio to another contestant's.
pub(crate) struct Target {
    /// The contestant that it applies to; the subject of the comparison if None.
    pub(crate) contestant: Option<&'static str>,
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    /// The ratio is to the best of these, round by round; empty for a bound on the metric itself.
    pub(crate) baselines: &'static [&'static str],
    pub(crate) bound: Bound,
}

pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// The target that this is the bound of.
    pub(crate) const fn of(
        self,
        contestant: Option<&'static str>,
        case: &'static str,
        metric: &'static str,
        baselines: &'static [&'static str],
    ) -> Target {
        Target {
            contestant,
            case,
            metric,
            baselines,
            bound: self,
        }
    }
}

impl Target {
    /// The figure that is hardest to reach, out of several contestants'.
    pub(crate) fn best(&self, figures: impl Iterator<Item = f64>) -> Option<f64> {
        figures.reduce(match self.bound {
            Bound::AtMost(_) => f64::min,
            Bound::AtLeast(_) => f64::max,
        })
    }

    /// `value` as a percentage of the bound.
    pub(crate) fn percent_of_bound(&self, value: f64) -> f64 {
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
        if let Some(contestant) = self.contestant {
            write!(f, "{contestant}: ")?;
        }
        write!(
            f,
            "{} {} {sign} {}",
            self.case,
            self.metric,
            format_number(bound)
        )?;
        match self.baselines {
            [] => Ok(()),
            [baseline] => write!(f, " x {baseline}"),
            baselines => write!(f, " x the best of {}", baselines.join(", ")),
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
    fn percentage_is_of_the_bound() {
        assert_eq!(target(Bound::AtMost(0.5)).percent_of_bound(0.75), 150.0);
    }

    #[test]
    fn target_prints_case_metric_and_bound() {
        assert_eq!(
            target(Bound::AtMost(4.0)).to_string(),
            "idle KiB/connection <= 4.00"
        );
    }

    #[test]
    fn best_baseline_is_the_hardest_to_reach() {
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
            contestant: None,
            case: "idle",
            metric: "KiB/connection",
            baselines: &[],
            bound,
        }
    }
}
