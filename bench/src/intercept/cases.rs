//! The cases of the comparison of intercepting proxies, and their targets.

use crate::compare::contestant::Case;
use crate::compare::target::Bound::AtMost;
use crate::compare::target::Target;
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
    AtMost(0.9).of(None, "cold", CPU, TUNED),
    AtMost(1.5).of(None, "cold", CPU, &[FLOOR]),
    AtMost(0.9).of(None, "warm", CPU, TUNED),
    AtMost(0.9).of(None, "resumed", CPU, TUNED),
    AtMost(0.9).of(None, "keep-alive", CPU, TUNED),
    AtMost(0.9).of(None, "h2", CPU, TUNED),
    AtMost(0.9).of(None, "stampede", CPU, TUNED),
    AtMost(1.0).of(None, "stampede", CERTIFICATES, &[]),
];

/// The baselines of ratios.
const TUNED: &[&str] = &["goproxy-tuned", "hudsucker-tuned"];
