//! The cases of the comparison of intercepting proxies, and their targets.

use crate::compare::contestant::Case;
use crate::compare::target::{Bound, Target};
use crate::intercept::contestants::{FLOOR, InterceptContestant};
use crate::intercept::load::spec::{CERTIFICATES, CPU, LoadShape};
use crate::intercept::profile::FORGING;

/// A shape of load, measured or profiled: a table.
pub(super) struct InterceptCase {
    name: &'static str,
    pub(super) shape: LoadShape,
    /// Sample where the proxy spends its time. Sampling costs time too, so CPU time is not measured then.
    pub(super) is_profiled: bool,
}

/// The raw results have these names: change the name with the meaning.
pub(super) const CASES: &[InterceptCase] = &[
    case("cold", COLD),
    case("warm", LoadShape::WARM),
    case(
        "resumed",
        LoadShape {
            resume: true,
            ..LoadShape::WARM
        },
    ),
    case(
        "keep-alive",
        LoadShape {
            requests: 5000,
            each: 625,
            ..LoadShape::WARM
        },
    ),
    case(
        "h2",
        LoadShape {
            requests: 5000,
            each: 625,
            streams: 8,
            ..LoadShape::WARM
        },
    ),
    case(
        "stampede",
        LoadShape {
            requests: 200,
            clients: 200,
            at_once: true,
            ..LoadShape::WARM
        },
    ),
    InterceptCase {
        is_profiled: true,
        ..case("profile", COLD)
    },
];

/// Each request to a new host.
const COLD: LoadShape = LoadShape {
    hosts: 1000,
    ..LoadShape::WARM
};

const fn case(name: &'static str, shape: LoadShape) -> InterceptCase {
    InterceptCase {
        name,
        shape,
        is_profiled: false,
    }
}

/// What a request may cost relative to the best competitor, and to what no proxy can avoid.
pub(super) const TARGETS: &[Target] = &[
    cpu("cold", TUNED, 0.9),
    cpu("cold", &[FLOOR], 1.5),
    cpu("warm", TUNED, 0.9),
    cpu("resumed", TUNED, 0.9),
    cpu("keep-alive", TUNED, 0.9),
    cpu("h2", TUNED, 0.9),
    cpu("stampede", TUNED, 0.9),
    Target {
        contestant: None,
        case: "stampede",
        metric: CERTIFICATES,
        baselines: &[],
        bound: Bound::AtMost(1.0),
    },
    Target {
        contestant: None,
        case: "profile",
        metric: FORGING,
        baselines: &[],
        bound: Bound::AtMost(2.0),
    },
];

/// The baselines of ratios.
const TUNED: &[&str] = &["goproxy-tuned", "hudsucker-tuned"];

const fn cpu(case: &'static str, baselines: &'static [&'static str], bound: f64) -> Target {
    Target {
        contestant: None,
        case,
        metric: CPU,
        baselines,
        bound: Bound::AtMost(bound),
    }
}

impl Case<InterceptContestant> for InterceptCase {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_supported_by(&self, contestant: &InterceptContestant) -> bool {
        if self.is_profiled {
            return contestant.is_peername();
        }
        // The floor caches nothing. Where hosts repeat, a proxy with a cache may well be below it.
        !contestant.is_floor() || self.shape.hosts >= self.shape.requests
    }
}
