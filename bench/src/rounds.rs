//! Contestants and tasks, taking turns.
//!
//! Rounds are interleaved (A B C, B C A, ...): whatever else the machine does meanwhile then falls
//! on all alike. Each is measured by a process of its own in namespaces of its own, see
//! [`stand`](crate::stand); this process only starts it, waits, and writes down what it said.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::report::{At, Csv, Record, Report, Target};
use crate::stand::Stand;

/// Who is compared: a row of the tables.
pub(crate) trait Contender {
    /// As it stands in the tables.
    fn name(&self) -> &str;

    /// The first line in which the program names its version.
    fn version(&self) -> String;

    /// Why it can't take part. None if it can.
    fn obstacle(&self) -> Option<String>;
}

/// What is done: a table.
pub(crate) trait Task<C> {
    /// As it stands in the raw figures: change the name with the meaning.
    fn name(&self) -> &'static str;

    /// Whether the contestant can do this work at all.
    fn suits(&self, contestant: &C) -> bool;

    /// How often each measures in a round, all being set up then. The shorter a turn, the less of what
    /// the machine does meanwhile falls on one alone; but what has to be warm or counted at rest takes its time.
    fn turns(&self) -> u32 {
        1
    }
}

/// What every comparison can be asked for.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// One short round: does everything work?
    #[arg(long, conflicts_with = "rounds")]
    pub(crate) quick: bool,
    /// Only these workloads, named as in the tables
    #[arg(long = "only", value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Whom to compare with the others
    #[arg(long, value_name = "NAME", default_value = "peername")]
    pub(crate) subject: String,
    /// Where the raw figures go
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    pub(crate) out: PathBuf,
}

impl Options {
    pub(crate) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }
}

/// Who does what, how often, and where it is written down.
pub(crate) struct Comparison<'a, C, T> {
    pub(crate) contestants: Vec<C>,
    pub(crate) tasks: Vec<&'a T>,
    pub(crate) rounds: u32,
    /// How much each measurement is, for the raw figures.
    pub(crate) extent: String,
    /// Whom to compare with the others.
    pub(crate) subject: &'a str,
    /// What the subject has to reach.
    pub(crate) targets: &'static [Target],
    /// Whom nobody can be under: what the targets leave room for is told by it.
    pub(crate) floor: Option<&'static str>,
    /// Where the raw figures go.
    pub(crate) out: &'a Path,
    /// After those that were set up together have ended.
    pub(crate) rest: Duration,
}

impl<C: Contender, T: Task<C>> Comparison<'_, C, T> {
    /// Has everybody measured, prints the tables to standard output, and writes the raw figures.
    ///
    /// # Errors
    /// A measurement of those that take part failed; the tables of what worked are printed
    /// nevertheless.
    pub(crate) fn run(mut self, set_up: impl Fn(&C, &T) -> Result<Stand>) -> Result<()> {
        let tasks = &self.tasks;
        self.contestants
            .retain(|contestant| tasks.iter().any(|task| task.suits(contestant)));
        let contestants = present(self.contestants);
        fs::create_dir_all(self.out).with_context(|| format!("create {}", self.out.display()))?;
        let csv = Csv::create(self.out, &contestants, &self.extent)?;
        let report = Report::new(&contestants, tasks, self.targets, self.floor);
        let mut figures = Figures {
            csv,
            report,
            failures: 0,
        };
        for round in 1..=self.rounds {
            for task in tasks {
                let mut suited: Vec<_> = contestants.iter().filter(|it| task.suits(it)).collect();
                // Another one begins each round, so nobody always runs in the wake of the same neighbour.
                let first = (round as usize - 1) % suited.len().max(1);
                suited.rotate_left(first);
                // Who has but one turn in a round has the machine to itself.
                let together = if task.turns() > 1 { suited.len() } else { 1 };
                for group in suited.chunks(together.max(1)) {
                    let stands = group.iter().map(|it| (it.name(), set_up(it, task)));
                    figures.take_turns(*task, round, stands.collect())?;
                    sleep(self.rest);
                }
            }
            eprintln!("round {round} of {} done", self.rounds);
        }
        let Figures {
            csv,
            report,
            failures,
        } = figures;
        print!("{}", report.tables(self.subject));
        println!("\nraw figures: {}", csv.path().display());
        ensure!(failures == 0, "{failures} measurements failed");
        Ok(())
    }
}

/// What has been measured so far.
struct Figures {
    csv: Csv,
    report: Report,
    failures: u32,
}

impl Figures {
    /// Has each measure in its turn, as often as the task says, and then ends them.
    fn take_turns<C, T: Task<C>>(
        &mut self,
        task: &T,
        round: u32,
        stands: Vec<(&str, Result<Stand>)>,
    ) -> Result<()> {
        let mut ready = Vec::new();
        for (name, stand) in stands {
            match stand {
                Ok(stand) => ready.push((name, stand)),
                Err(error) => self.fail(name, task, &error)?,
            }
        }
        for turn in 1..=task.turns() {
            let mut still_ready = Vec::new();
            for (name, mut stand) in ready {
                match stand.measure() {
                    Ok(outcome) => {
                        let record = Record::new(At { round, turn }, name, task.name(), outcome);
                        self.csv.append(&record)?;
                        self.report.add(record);
                        still_ready.push((name, stand));
                    }
                    Err(error) => self.fail(name, task, &error)?,
                }
            }
            ready = still_ready;
            if !ready.is_empty() {
                ready.rotate_left(1);
            }
        }
        Ok(())
    }

    fn fail<C>(&mut self, name: &str, task: &impl Task<C>, error: &anyhow::Error) -> Result<()> {
        self.failures += 1;
        let line = format!("{name} {}: {error:#}", task.name());
        println!("FAILED {line}");
        self.csv.note(&line)
    }
}

/// Those of `tasks` that are named in `only`; all if nothing is.
///
/// # Errors
/// A name is nobody's.
pub(crate) fn wanted<'a, C, T: Task<C>>(tasks: &'a [T], only: &[String]) -> Result<Vec<&'a T>> {
    for name in only {
        ensure!(
            tasks.iter().any(|task| task.name() == name),
            "there is no workload {name}"
        );
    }
    let is_wanted = |task: &&T| only.is_empty() || only.iter().any(|name| name == task.name());
    Ok(tasks.iter().filter(is_wanted).collect())
}

/// Says who is left out and why.
fn present<C: Contender>(contestants: Vec<C>) -> Vec<C> {
    contestants
        .into_iter()
        .filter(|contestant| match contestant.obstacle() {
            None => true,
            Some(why) => {
                println!("skipped {}: {why}", contestant.name());
                false
            }
        })
        .collect()
}
