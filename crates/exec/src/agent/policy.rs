//! A policy of the agent, for the containers that name it.

use std::rc::Rc;
use std::time::Duration;

use crate::client_judge::ClientJudge;
use crate::table::Rules;

/// A policy, which containers name by `listenerMetadata` in their seccomp profile.
#[derive(Clone, Debug)]
pub struct AgentPolicy {
    /// The name.
    pub name: String,
    /// The headers that are expected, and the ports. `listing` is determined for each container.
    pub rules: Rules,
    /// Connections of a container that may be open at the same time: a power of two, and at least 64.
    pub slots: usize,
    /// The time from accept to the complete header.
    pub header_timeout: Duration,
    /// Which clients may connect; `None` for all.
    pub clients: Option<Rc<dyn ClientJudge>>,
    /// Log each refused connection, not only the first of each reason in an interval.
    pub verbose: bool,
}
