//! The transport protocol of a workload.

use serde::{Deserialize, Serialize};

/// What a workload runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}
