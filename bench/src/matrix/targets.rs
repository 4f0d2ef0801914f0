//! The targets of the matrix.

use crate::compare::target::{Bound, Target};

/// What peername, or one of its modes, has to reach.
pub(crate) const TARGETS: &[Target] = &[
    at_most(None, "pingpong", "CPU us/echo", &["haproxy"], 1.0),
    at_most(None, "bulk-1", "CPU s/GB", &["nginx"], 0.5),
    at_most(None, "bulk-4", "CPU s/GB", &["nginx"], 0.5),
    at_least(None, "churn", "connections/s", &["haproxy"], 1.0),
    at_most(None, "idle", "KiB/connection", &[], 4.0),
    at_least(None, "udp-echo", "echoes/s", &["direct"], 0.6),
    at_most(None, "udp-echo", "CPU us/echo", &["naive"], 0.6),
    at_least(None, "udp-echo-window", "echoes/s", &["direct"], 0.6),
    at_most(None, "udp-echo-window", "CPU us/echo", &["naive"], 0.6),
    at_least(OBSERVED, "churn", "connections/s", &["peername"], 0.99),
    at_most(OBSERVED, "pingpong", "CPU us/echo", &["peername"], 1.01),
    at_least(KERNEL, "udp-echo", "echoes/s", &["direct"], 0.6),
    at_most(KERNEL, "udp-echo", CPU_OF_ALL, &["naive"], 0.6),
    at_least(KERNEL, "udp-echo-window", "echoes/s", &["direct"], 0.6),
    at_most(KERNEL, "udp-echo-window", CPU_OF_ALL, &["naive"], 0.6),
    at_least(PRELOAD, "churn", "connections/s", &["plain"], 0.95),
    at_least(PRELOAD, "pingpong", "echoes/s", &["plain"], 0.95),
    at_least(PRELOAD, "bulk-1", "MB/s", &["plain"], 0.95),
    at_least(NOTIFY, "churn", "connections/s", &["plain"], 0.65),
    at_least(NOTIFY, "pingpong", "echoes/s", &["plain"], 0.95),
    at_least(NOTIFY, "bulk-1", "MB/s", &["plain"], 0.95),
    at_least(NETNS, "churn", "connections/s", &["peername"], 0.9),
    at_least(NETNS, "pingpong", "echoes/s", &["peername"], 0.9),
    at_least(NETNS, "bulk-1", "MB/s", &["peername"], 0.9),
];

const fn at_most(
    contestant: Option<&'static str>,
    case: &'static str,
    metric: &'static str,
    baselines: &'static [&'static str],
    bound: f64,
) -> Target {
    Target {
        contestant,
        case,
        metric,
        baselines,
        bound: Bound::AtMost(bound),
    }
}

const fn at_least(
    contestant: Option<&'static str>,
    case: &'static str,
    metric: &'static str,
    baselines: &'static [&'static str],
    bound: f64,
) -> Target {
    Target {
        contestant,
        case,
        metric,
        baselines,
        bound: Bound::AtLeast(bound),
    }
}

const OBSERVED: Option<&str> = Some("observed");
const KERNEL: Option<&str> = Some("kernel");
const PRELOAD: Option<&str> = Some("preload");
const NOTIFY: Option<&str> = Some("notify");
const NETNS: Option<&str> = Some("netns");
const CPU_OF_ALL: &str = "CPU us/echo of all";
