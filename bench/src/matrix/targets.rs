//! The targets of the matrix.

use crate::compare::target::Bound::{AtLeast, AtMost};
use crate::compare::target::Target;

/// What peername, or one of its modes, has to reach.
pub(crate) const TARGETS: &[Target] = &[
    AtMost(1.0).of(None, "pingpong", "CPU us/echo", &["haproxy"]),
    AtMost(0.5).of(None, "bulk-1", "CPU s/GB", &["nginx"]),
    AtMost(0.5).of(None, "bulk-4", "CPU s/GB", &["nginx"]),
    AtLeast(1.0).of(None, "churn", "connections/s", &["haproxy"]),
    AtMost(4.0).of(None, "idle", "KiB/connection", &[]),
    AtLeast(0.6).of(None, "udp-echo", "echoes/s", &["direct"]),
    AtMost(0.6).of(None, "udp-echo", "CPU us/echo", &["naive"]),
    AtLeast(0.6).of(None, "udp-echo-window", "echoes/s", &["direct"]),
    AtMost(0.6).of(None, "udp-echo-window", "CPU us/echo", &["naive"]),
    AtLeast(0.99).of(OBSERVED, "churn", "connections/s", &["peername"]),
    AtMost(1.01).of(OBSERVED, "pingpong", "CPU us/echo", &["peername"]),
    AtLeast(0.6).of(KERNEL, "udp-echo", "echoes/s", &["direct"]),
    AtMost(0.6).of(KERNEL, "udp-echo", CPU_OF_ALL, &["naive"]),
    AtLeast(0.6).of(KERNEL, "udp-echo-window", "echoes/s", &["direct"]),
    AtMost(0.6).of(KERNEL, "udp-echo-window", CPU_OF_ALL, &["naive"]),
    AtLeast(0.95).of(PRELOAD, "churn", "connections/s", &["plain"]),
    AtLeast(0.95).of(PRELOAD, "pingpong", "echoes/s", &["plain"]),
    AtLeast(0.95).of(PRELOAD, "bulk-1", "MB/s", &["plain"]),
    AtLeast(0.65).of(NOTIFY, "churn", "connections/s", &["plain"]),
    AtLeast(0.95).of(NOTIFY, "pingpong", "echoes/s", &["plain"]),
    AtLeast(0.95).of(NOTIFY, "bulk-1", "MB/s", &["plain"]),
    AtLeast(0.9).of(NETNS, "churn", "connections/s", &["peername"]),
    AtLeast(0.9).of(NETNS, "pingpong", "echoes/s", &["peername"]),
    AtLeast(0.9).of(NETNS, "bulk-1", "MB/s", &["peername"]),
];

const OBSERVED: Option<&str> = Some("observed");
const KERNEL: Option<&str> = Some("kernel");
const PRELOAD: Option<&str> = Some("preload");
const NOTIFY: Option<&str> = Some("notify");
const NETNS: Option<&str> = Some("netns");
const CPU_OF_ALL: &str = "CPU us/echo of all";
