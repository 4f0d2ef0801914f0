//! A policy of the agent, for the containers that name it.

use std::rc::Rc;
use std::time::Duration;

use crate::client_judge::ClientJudge;
use crate::table::TableRules;

/// A policy, which containers name by `listenerMetadata` in their seccomp profile.
#[derive(Clone, Debug)]
pub struct AgentPolicy {
    /// The name.
    pub name: String,
    /// The headers that are expected, and the ports. `listing` is determined for each container.
    pub rules: TableRules,
    /// Connections of a container that may be open at the same time: a power of two, and at least 64.
    pub slots: usize,
    /// The time from accept to the complete header.
    pub header_timeout: Duration,
    /// Decides which clients may connect; `None` where all may.
    pub judge: Option<Rc<dyn ClientJudge>>,
    /// Log each refused connection, not only the first of each reason in an interval.
    pub verbose: bool,
}
