//! `peername-bench intercept`: `peername intercept` and its competitors, the cost of opening TLS.
//!
//! Generator ([`load`]) and origin ([`origin`]) are part of this binary, and so simple that their cost is mostly TLS.
//! `make bench-intercept` builds the competitors from `bench/intercept/`. A [`cell`] is one measurement: a name server
//! that resolves to the origin, the origin, one proxy, the load.

use std::time::Duration;

use anyhow::Result;

use crate::compare::Comparison;
use crate::compare::contestant::Case;
use crate::compare::options::Options;
use crate::compare::sandbox::Sandbox;
use crate::intercept::cases::{CASES, TARGETS};
use crate::intercept::cell::InterceptCell;
use crate::intercept::contestants::{FLOOR, InterceptContestant, Selection};
use crate::intercept::load::spec::LoadShape;

mod accept_loop;
mod affinity;
mod cases;
pub(crate) mod cell;
pub(crate) mod certificates;
mod contestants;
pub(crate) mod dns;
pub(crate) mod floor;
pub(crate) mod load;
pub(crate) mod origin;
mod tls;

/// The arguments of `peername-bench intercept`.
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
        contestants: args.contestants.contestants()?,
        cases: CASES,
        extent: format!("{rounds} rounds; {}", affinity::describe()?),
        targets: TARGETS,
        floor: Some(FLOOR),
        rest: Duration::ZERO,
    };
    comparison.run(|contestant, case| args.set_up(contestant, case))
}

impl Args {
    fn set_up(&self, contestant: &InterceptContestant, case: &Case<LoadShape>) -> Result<Sandbox> {
        let mut shape = case.work;
        if self.options.quick {
            shape.shrink(QUICK_REQUESTS);
        }
        let out = &self.options.out;
        Sandbox::set_up("intercept-cell", out, CELL_TIMEOUT, |directory| {
            InterceptCell {
                contestant: contestant.clone(),
                shape,
                directory: directory.to_owned(),
            }
        })
    }
}

/// Requests of a quick run, with as many clients as otherwise.
const QUICK_REQUESTS: usize = 40;

/// How long the set-up of a cell, or one of its measurements, may take.
const CELL_TIMEOUT: Duration = Duration::from_secs(120);
