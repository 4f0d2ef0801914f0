//! `peername-bench jail`: `peername jail` and httpjail, the cost of a jail: its start, its requests, its memory.
//!
//! Both run the same program inside: `true`, or the [`client`], whose requests go to an origin outside. A [`cell`] is one
//! measurement: file systems that a jail may change ([`stage`]), and for requests a name server, the origin and one jail.
//! What gets out of each jail is counted by a test: `make bench-jail-bypasses`.

use std::time::Duration;

use anyhow::Result;

use crate::compare::Comparison;
use crate::compare::contestant::Case;
use crate::compare::options::Options;
use crate::compare::sandbox::Sandbox;
use crate::jail::cases::{CASES, TARGETS, Work};
use crate::jail::cell::JailCell;
use crate::jail::contestants::{JailContestant, Selection};

mod cases;
pub(crate) mod cell;
pub(crate) mod client;
mod contestants;
mod requests;
mod stage;
mod starts;

/// The arguments of `peername-bench jail`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contestants: Selection,
    #[command(flatten)]
    options: Options,
}

/// Runs every contestant through every workload, prints the tables to standard output, and writes the raw results.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rounds = args.options.rounds();
    let comparison = Comparison {
        options: &args.options,
        contestants: args.contestants.contestants(),
        cases: CASES,
        extent: format!("{rounds} rounds"),
        targets: TARGETS,
        floor: None,
        rest: Duration::ZERO,
    };
    comparison.run(|contestant, case| args.set_up(contestant, case))
}

impl Args {
    fn set_up(&self, contestant: &JailContestant, case: &Case<Work>) -> Result<Sandbox> {
        let mut work = case.work;
        if self.options.quick {
            work.shrink();
        }
        let out = &self.options.out;
        Sandbox::set_up("jail-cell", out, CELL_TIMEOUT, |directory| JailCell {
            contestant: contestant.clone(),
            work,
            is_root: rustix::process::geteuid().is_root(),
            directory: directory.to_owned(),
        })
    }
}

/// How long the set-up of a cell, or one of its measurements, may take.
const CELL_TIMEOUT: Duration = Duration::from_secs(120);
