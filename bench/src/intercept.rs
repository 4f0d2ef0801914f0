//! `peername intercept` beside its peers: what it costs to open TLS.
//!
//! Generator ([`load`]) and origin ([`origin`]) are of this binary, and so plain that what they cost is
//! mostly TLS. The peers are built by `make bench-intercept` from what stands in `bench/intercept/`. A
//! [`cell`] is one measurement: names that resolve to the origin, the origin, one proxy, the load.

use std::time::Duration;

use anyhow::Result;

use crate::report::{Bound, Target};
use crate::rounds::{self, Comparison, Contender, Options, Task};
use crate::stand::Stand;

use cell::Cell;
use load::Shape;
use peers::{Contestant, Selection};

mod affinity;
mod authority;
pub(crate) mod cell;
pub(crate) mod floor;
pub(crate) mod load;
mod names;
pub(crate) mod origin;
mod peers;
mod profile;
mod serving;
mod tls;

/// `peername-bench intercept`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contestants: Selection,
    #[command(flatten)]
    options: Options,
}

/// A table: a shape of load, and whether it is looked at from within.
struct Measure {
    name: &'static str,
    shape: Shape,
    /// Sample where the proxy spends its time. That costs time too, so it is not measured then.
    profiled: bool,
    /// Those whose configuration leaves the most undone take part too.
    untuned: bool,
}

/// Names stand in the raw figures: change the name with the meaning.
const TASKS: &[Measure] = &[
    Measure {
        name: "cold",
        shape: Shape {
            hosts: 1000,
            ..Shape::WARM
        },
        profiled: false,
        untuned: true,
    },
    Measure {
        name: "warm",
        shape: Shape::WARM,
        profiled: false,
        untuned: true,
    },
    Measure {
        name: "resumed",
        shape: Shape {
            resume: true,
            ..Shape::WARM
        },
        profiled: false,
        untuned: false,
    },
    Measure {
        name: "keep-alive",
        shape: Shape {
            requests: 5000,
            each: 625,
            ..Shape::WARM
        },
        profiled: false,
        untuned: false,
    },
    Measure {
        name: "h2",
        shape: Shape {
            requests: 5000,
            each: 625,
            streams: 8,
            ..Shape::WARM
        },
        profiled: false,
        untuned: false,
    },
    Measure {
        name: "stampede",
        shape: Shape {
            requests: 200,
            clients: 200,
            at_once: true,
            ..Shape::WARM
        },
        profiled: false,
        untuned: false,
    },
    Measure {
        name: "profile",
        shape: Shape {
            hosts: 1000,
            ..Shape::WARM
        },
        profiled: true,
        untuned: false,
    },
];

/// The goal: what opening TLS may cost, absolutely and beside the best that others do.
const TARGETS: &[Target] = &[
    cpu("cold", &[], 0.6),
    cpu("cold", TUNED, 0.4),
    cpu("warm", &[], 0.6),
    cpu("warm", TUNED, 0.4),
    Target {
        of: None,
        task: "stampede",
        metric: load::CERTIFICATES,
        peers: &[],
        bound: Bound::AtMost(1.0),
    },
    Target {
        of: None,
        task: "profile",
        metric: profile::FORGING,
        peers: &[],
        bound: Bound::AtMost(2.0),
    },
];

/// Only they count for a ratio: who is not tuned is easily beaten.
const TUNED: &[&str] = &["goproxy-tuned", "hudsucker-tuned"];

const fn cpu(task: &'static str, peers: &'static [&'static str], bound: f64) -> Target {
    Target {
        of: None,
        task,
        metric: load::CPU,
        peers,
        bound: Bound::AtMost(bound),
    }
}

impl Task<Contestant> for Measure {
    fn name(&self) -> &'static str {
        self.name
    }

    fn suits(&self, contestant: &Contestant) -> bool {
        if self.profiled {
            return contestant.is_ours();
        }
        // It keeps nothing. Where something is worth keeping, others may well be below it.
        if contestant.is_floor() {
            return self.shape.hosts >= self.shape.requests;
        }
        self.untuned || contestant.is_tuned()
    }
}

/// Runs every contestant through every workload, prints the tables to standard output, and writes the
/// raw figures.
///
/// # Errors
/// A contestant that takes part did not start, or an answer of its was wrong; the tables of what worked
/// are printed nevertheless.
pub(crate) fn run(args: &Args) -> Result<()> {
    let rounds = args.options.rounds();
    let mut tasks = rounds::wanted(TASKS, &args.options.only)?;
    if let Some(why) = profile::obstacle() {
        println!("skipped profile: {why}");
        tasks.retain(|task| !task.profiled);
    }
    let comparison = Comparison {
        contestants: args.contestants.contestants()?,
        tasks,
        rounds,
        extent: format!("{rounds} rounds; {}", affinity::describe()?),
        subject: &args.options.subject,
        targets: TARGETS,
        floor: Some(peers::FLOOR),
        out: &args.options.out,
        rest: Duration::ZERO,
    };
    comparison.run(|contestant, task| args.set_up(contestant, task))
}

impl Args {
    fn set_up(&self, contestant: &Contestant, task: &Measure) -> Result<Stand> {
        let mut shape = task.shape;
        shape.requests = shape.requests.min(contestant.requests());
        // Fewer samples than a thousand requests take say nothing.
        if self.options.quick && !task.profiled {
            shape.shrink(QUICK);
        }
        let out = &self.options.out;
        Stand::set_up("intercept-cell", out, PATIENCE, |directory| Cell {
            contestant: contestant.clone(),
            shape,
            profile: task.profiled.then(|| out.join(listing(contestant.name()))),
            directory: directory.to_owned(),
        })
    }
}

/// What a contestant spent its time on; the last round's.
fn listing(contestant: &str) -> String {
    format!("intercept-profile-{contestant}.txt")
}

/// Requests, with as many clients as otherwise.
const QUICK: usize = 40;

/// What a cell may take. The slowest peer needs a tenth of a second for each of a hundred requests.
const PATIENCE: Duration = Duration::from_secs(120);
