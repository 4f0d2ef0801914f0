//! `peername-bench matrix`: all contestants, all workloads.

use std::time::Duration;

use anyhow::Result;

use crate::compare::Comparison;
use crate::compare::contestant::Case;
use crate::compare::options::Options;
use crate::compare::sandbox::Sandbox;
use crate::host::namespace;
use crate::matrix::cases::{CASES, MatrixWork};
use crate::matrix::cell::MatrixCell;
use crate::matrix::contestants::MatrixContestant;
use crate::matrix::selection::Selection;
use crate::matrix::targets::TARGETS;

mod cases;
pub(crate) mod cell;
mod contestants;
mod observer;
mod selection;
mod targets;

/// The arguments of `peername-bench matrix`.
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

/// Runs the matrix, prints the tables to standard output, and writes the raw results.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rounds = args.options.rounds();
    let duration = humantime::format_duration(args.duration());
    let comparison = Comparison {
        options: &args.options,
        contestants: args.contestants.contestants()?,
        cases: CASES,
        extent: format!("{rounds} rounds, {duration} each"),
        targets: TARGETS,
        floor: None,
        rest: if args.options.quick {
            Duration::ZERO
        } else {
            REST_AFTER_GROUP
        },
    };
    comparison.run(|contestant, case| args.set_up(contestant, case))
}

impl Args {
    fn duration(&self) -> Duration {
        if self.options.quick {
            QUICK_DURATION
        } else {
            *self.duration
        }
    }

    fn connections(&self, work: &MatrixWork) -> usize {
        let wanted = if self.options.quick {
            work.connections.min(QUICK_CONNECTIONS)
        } else {
            work.connections
        };
        // A proxy needs two descriptors for each connection, and some for itself.
        let possible = namespace::max_descriptors().saturating_sub(SPARE_DESCRIPTORS) / 2;
        wanted.min(usize::try_from(possible).unwrap_or(usize::MAX))
    }

    fn set_up(&self, contestant: &MatrixContestant, case: &Case<MatrixWork>) -> Result<Sandbox> {
        let duration = match case.turns {
            1 => self.duration(),
            _ => self.duration() / SHORT_TURN_DIVISOR,
        };
        Sandbox::set_up(
            "cell",
            &self.options.out,
            duration + SETUP_ALLOWANCE,
            |directory| MatrixCell {
                contestant: contestant.clone(),
                workload: case.work.workload,
                connections: self.connections(&case.work),
                duration,
                cpu_scope: self.contestants.cpu_scope(),
                directory: directory.to_owned(),
            },
        )
    }
}

/// A short turn takes `--for` divided by this.
const SHORT_TURN_DIVISOR: u32 = 10;

/// Long enough for each workload to do some work.
const QUICK_DURATION: Duration = Duration::from_millis(500);
const QUICK_CONNECTIONS: usize = 500;

/// Descriptors that a proxy needs besides those of its connections.
const SPARE_DESCRIPTORS: u64 = 500;

/// What a cell may take beyond its measurement: starting, opening and waking thousands of connections, and
/// waiting for what is lost.
const SETUP_ALLOWANCE: Duration = Duration::from_secs(60);

/// After `churn` the kernel takes down some hundred thousand sockets in the background, for about this long.
/// Without the rest, the next contestant would pay for it.
const REST_AFTER_GROUP: Duration = Duration::from_millis(500);
