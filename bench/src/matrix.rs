//! All contestants through all workloads.

use std::time::Duration;

use anyhow::Result;

use crate::cell::Cell;
use crate::load::Workload;
use crate::namespace;
use crate::proxies::{Contestant, Selection};
use crate::report::TARGETS;
use crate::rounds::{self, Comparison, Options, Task};
use crate::stand::Stand;

/// `peername-bench matrix`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contestants: Selection,
    #[command(flatten)]
    options: Options,
    /// How long each measurement takes
    #[arg(
        long = "for",
        value_name = "DURATION",
        default_value = "3s",
        conflicts_with = "quick"
    )]
    duration: humantime::Duration,
}

/// A table of the matrix: a workload and its size.
struct Measure {
    name: &'static str,
    workload: Workload,
    connections: usize,
    /// In a round; several are short ones.
    turns: u32,
}

/// Every workload that is run. Names stand in the raw figures: change the name with the meaning.
const TASKS: &[Measure] = &[
    Measure {
        name: "pingpong",
        workload: Workload::Pingpong,
        connections: 50,
        turns: 1,
    },
    Measure {
        name: "bulk-1",
        workload: Workload::Bulk,
        connections: 1,
        turns: 1,
    },
    Measure {
        name: "bulk-4",
        workload: Workload::Bulk,
        connections: 4,
        turns: 1,
    },
    Measure {
        name: "churn",
        workload: Workload::Churn,
        connections: 50,
        turns: 40,
    },
    Measure {
        name: "idle",
        workload: Workload::Idle,
        connections: 5_000,
        turns: 1,
    },
    Measure {
        name: "udp-echo",
        workload: Workload::UdpEcho,
        connections: 50,
        turns: 1,
    },
    Measure {
        name: "udp-echo-shared",
        workload: Workload::UdpEchoShared,
        connections: 50,
        turns: 1,
    },
    Measure {
        name: "udp-echo-window",
        workload: Workload::UdpEchoWindow,
        connections: 50,
        turns: 1,
    },
    Measure {
        name: "udp-stream",
        workload: Workload::UdpStream,
        connections: 4,
        turns: 1,
    },
];

impl Task<Contestant> for Measure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn suits(&self, contestant: &Contestant) -> bool {
        contestant.carries(self.workload.transport())
    }

    fn turns(&self) -> u32 {
        self.turns
    }
}

/// Runs the matrix, prints the tables to standard output, and writes the raw figures.
///
/// # Errors
/// A contestant that takes part lost a byte or a connection, or did not start; the tables of what
/// worked are printed nevertheless.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (rounds, duration) = (
        args.options.rounds(),
        humantime::format_duration(args.duration()),
    );
    let comparison = Comparison {
        contestants: args.contestants.contestants()?,
        tasks: rounds::wanted(TASKS, &args.options.only)?,
        rounds,
        extent: format!("{rounds} rounds, {duration} each"),
        subject: &args.options.subject,
        targets: TARGETS,
        floor: None,
        out: &args.options.out,
        rest: if args.options.quick {
            Duration::ZERO
        } else {
            REST
        },
    };
    comparison.run(|contestant, task| args.set_up(contestant, task))
}

impl Args {
    fn duration(&self) -> Duration {
        if self.options.quick {
            QUICK
        } else {
            *self.duration
        }
    }

    fn connections(&self, task: &Measure) -> usize {
        let wanted = if self.options.quick {
            task.connections.min(QUICK_CONNECTIONS)
        } else {
            task.connections
        };
        // A proxy needs two descriptors for each, and some for itself.
        let possible = namespace::descriptors().saturating_sub(SPARE_DESCRIPTORS) / 2;
        wanted.min(usize::try_from(possible).unwrap_or(usize::MAX))
    }

    fn set_up(&self, contestant: &Contestant, task: &Measure) -> Result<Stand> {
        let duration = match task.turns {
            1 => self.duration(),
            _ => self.duration() / SHORT,
        };
        Stand::set_up(
            "cell",
            &self.options.out,
            duration + ALLOWANCE,
            |directory| Cell {
                contestant: contestant.clone(),
                workload: task.workload,
                connections: self.connections(task),
                duration,
                watch: self.contestants.watch(),
                directory: directory.to_owned(),
            },
        )
    }
}

/// Of how long a turn takes otherwise, a short one takes this part.
const SHORT: u32 = 10;

/// Long enough for each workload to do some work.
const QUICK: Duration = Duration::from_millis(500);
const QUICK_CONNECTIONS: usize = 500;

const SPARE_DESCRIPTORS: u64 = 500;

/// What a cell may take beyond its measurement: starting, opening and waking thousands of
/// connections, and waiting for what is lost.
const ALLOWANCE: Duration = Duration::from_secs(60);

/// After `churn` the kernel takes down some hundred thousand sockets in the background, for about
/// this long. Without the rest, that would be the next contestant's loss.
const REST: Duration = Duration::from_millis(500);
