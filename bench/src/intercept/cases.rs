//! The cases of the comparison of intercepting proxies, and their targets.

use crate::compare::contestant::Case;
use crate::compare::target::{Bound, Target};
use crate::intercept::contestants::FLOOR;
use crate::intercept::load::spec::{CERTIFICATES, CPU, LoadShape};

pub(super) const CASES: &[Case<LoadShape>] = &[
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
];

/// Each request to a new host.
const COLD: LoadShape = LoadShape {
    hosts: 1000,
    ..LoadShape::WARM
};

const fn case(name: &'static str, work: LoadShape) -> Case<LoadShape> {
    Case {
        name,
        work,
        turns: 1,
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
