//! The cases of the matrix: workloads and their sizes.

use crate::compare::contestant::Case;
use crate::load::spec::Workload;
use crate::matrix::contestants::MatrixContestant;

/// A workload and its size: a table of the matrix.
pub(super) struct MatrixCase {
    name: &'static str,
    pub(super) workload: Workload,
    pub(super) connections: usize,
    /// Turns in a round; several turns are short ones.
    pub(super) turns: u32,
}

/// Every workload that is run. The raw results have these names: change the name with the meaning.
pub(super) const CASES: &[MatrixCase] = &[
    case("pingpong", Workload::Pingpong, 50),
    case("bulk-1", Workload::Bulk, 1),
    case("bulk-4", Workload::Bulk, 4),
    MatrixCase {
        turns: 40,
        ..case("churn", Workload::Churn, 50)
    },
    case("idle", Workload::Idle, 5_000),
    case("udp-echo", Workload::UdpEcho, 50),
    case("udp-echo-shared", Workload::UdpEchoShared, 50),
    case("udp-echo-window", Workload::UdpEchoWindow, 50),
    case("udp-stream", Workload::UdpStream, 4),
];

const fn case(name: &'static str, workload: Workload, connections: usize) -> MatrixCase {
    MatrixCase {
        name,
        workload,
        connections,
        turns: 1,
    }
}

impl Case<MatrixContestant> for MatrixCase {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_supported_by(&self, contestant: &MatrixContestant) -> bool {
        contestant.carries(self.workload.transport())
    }

    fn turns(&self) -> u32 {
        self.turns
    }
}
