//! The cases of the comparison of jails, and their targets.

use serde::{Deserialize, Serialize};

use crate::compare::contestant::Case;
use crate::compare::target::Bound::AtMost;
use crate::compare::target::Target;
use crate::intercept::load::spec::{CPU, LoadShape};

/// What is done in a turn.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Starts a jail with `true` in it, this many times.
    Starts(u32),
    /// Requests of a client in a jail that has been started before.
    Requests(LoadShape),
    /// The same, and the jail's memory before and after them.
    Memory(LoadShape),
}

impl Work {
    /// Reduces the work, so that every part of it is still done.
    pub(super) fn shrink(&mut self) {
        match self {
            Self::Starts(count) => *count = 1,
            Self::Requests(shape) | Self::Memory(shape) => shape.shrink(QUICK_REQUESTS),
        }
    }
}

pub(super) const CASES: &[Case<Work>] = &[
    Case {
        name: "start",
        work: Work::Starts(10),
        turns: 6,
    },
    Case {
        name: "new-connections",
        work: Work::Requests(LoadShape::WARM),
        turns: 3,
    },
    Case {
        name: "keep-alive",
        work: Work::Requests(LoadShape {
            requests: 2000,
            each: 250,
            ..LoadShape::WARM
        }),
        turns: 3,
    },
    Case {
        name: "memory",
        work: Work::Memory(LoadShape::WARM),
        turns: 1,
    },
];

/// What a jail may cost, compared with the competitor.
pub(super) const TARGETS: &[Target] = &[
    AtMost(1.0).of(None, "start", START, &[HTTPJAIL]),
    AtMost(1.0).of(None, "start", START_CPU, &[HTTPJAIL]),
    AtMost(1.0).of(None, "new-connections", CPU, &[HTTPJAIL]),
    AtMost(1.0).of(None, "keep-alive", CPU, &[HTTPJAIL]),
    AtMost(1.0).of(None, "memory", PSS[0], &[HTTPJAIL]),
    AtMost(1.0).of(None, "memory", PSS[1], &[HTTPJAIL]),
];

/// The competitor's name in the tables.
pub(super) const HTTPJAIL: &str = "httpjail";

/// The names of the metrics.
pub(super) const START: &str = "ms";
pub(super) const START_CPU: &str = "CPU ms";
pub(super) const PSS: [&str; 2] = ["PSS KiB at start", "PSS KiB after"];
pub(super) const ANONYMOUS: [&str; 2] = ["anonymous KiB at start", "anonymous KiB after"];

/// Requests of a quick run.
const QUICK_REQUESTS: usize = 40;
