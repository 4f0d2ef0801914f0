//! All contestants through all workloads.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;

use crate::cell::{Cell, Outcome};
use crate::load::Workload;
use crate::namespace;
use crate::proxies::{Contestant, Selection};
use crate::report::TARGETS;
use crate::rounds::{self, Comparison, Options, Task};

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
}

/// Every workload that is run. Names stand in the raw figures: change the name with the meaning.
const TASKS: &[Measure] = &[
    Measure {
        name: "pingpong",
        workload: Workload::Pingpong,
        connections: 50,
    },
    Measure {
        name: "bulk-1",
        workload: Workload::Bulk,
        connections: 1,
    },
    Measure {
        name: "bulk-4",
        workload: Workload::Bulk,
        connections: 4,
    },
    Measure {
        name: "churn",
        workload: Workload::Churn,
        connections: 50,
    },
    Measure {
        name: "idle",
        workload: Workload::Idle,
        connections: 5_000,
    },
    Measure {
        name: "udp-echo",
        workload: Workload::UdpEcho,
        connections: 50,
    },
    Measure {
        name: "udp-echo-shared",
        workload: Workload::UdpEchoShared,
        connections: 50,
    },
    Measure {
        name: "udp-echo-window",
        workload: Workload::UdpEchoWindow,
        connections: 50,
    },
    Measure {
        name: "udp-stream",
        workload: Workload::UdpStream,
        connections: 4,
    },
];

impl Task<Contestant> for Measure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn suits(&self, contestant: &Contestant) -> bool {
        contestant.carries(self.workload.transport())
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
    };
    comparison.run(|contestant, task| args.measure(contestant, task))
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

    fn measure(&self, contestant: &Contestant, task: &Measure) -> Result<Outcome> {
        let outcome = rounds::in_directory(&self.options.out, |directory| {
            let cell = Cell {
                contestant: contestant.clone(),
                workload: task.workload,
                connections: self.connections(task),
                duration: self.duration(),
                watch: self.contestants.watch(),
                directory: directory.to_owned(),
            };
            rounds::run_cell("cell", &cell, cell.duration + ALLOWANCE)
        });
        if !self.options.quick {
            sleep(REST);
        }
        outcome
    }
}

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
