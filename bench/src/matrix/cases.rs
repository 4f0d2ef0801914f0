//! The cases of the matrix: workloads and their sizes.

use crate::compare::contestant::Case;
use crate::load::spec::Workload;

/// A workload and its size.
pub(super) struct MatrixWork {
    pub(super) workload: Workload,
    pub(super) connections: usize,
}

/// Every workload that is run. A case of several turns in a round has short ones (see [`Case::turns`]).
pub(super) const CASES: &[Case<MatrixWork>] = &[
    case("pingpong", Workload::Pingpong, 50),
    case("bulk-1", Workload::Bulk, 1),
    case("bulk-4", Workload::Bulk, 4),
    Case {
        turns: 40,
        ..case("churn", Workload::Churn, 50)
    },
    case("idle", Workload::Idle, 5_000),
    case("udp-echo", Workload::UdpEcho, 50),
    case("udp-echo-shared", Workload::UdpEchoShared, 50),
    case("udp-echo-window", Workload::UdpEchoWindow, 50),
    case("udp-stream", Workload::UdpStream, 4),
];

const fn case(name: &'static str, workload: Workload, connections: usize) -> Case<MatrixWork> {
    Case {
        name,
        work: MatrixWork {
            workload,
            connections,
        },
        turns: 1,
    }
}
