//! Contestants and tasks, taking turns.
//!
//! Rounds are interleaved (A B C, B C A, ...): whatever else the machine does meanwhile then falls
//! on all alike. Each measurement is a process of its own in namespaces of its own, see
//! [`namespace`]; this process only starts it, waits, and writes down what it said.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use crate::cell::Outcome;
use crate::namespace;
use crate::report::{Csv, Record, Report, Target};

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
}

impl<C: Contender, T: Task<C>> Comparison<'_, C, T> {
    /// Has everybody measured, prints the tables to standard output, and writes the raw figures.
    ///
    /// # Errors
    /// A measurement of those that take part failed; the tables of what worked are printed
    /// nevertheless.
    pub(crate) fn run(mut self, measure: impl Fn(&C, &T) -> Result<Outcome>) -> Result<()> {
        let tasks = &self.tasks;
        self.contestants
            .retain(|contestant| tasks.iter().any(|task| task.suits(contestant)));
        let contestants = present(self.contestants);
        fs::create_dir_all(self.out).with_context(|| format!("create {}", self.out.display()))?;
        let mut csv = Csv::create(self.out, &contestants, &self.extent)?;
        let mut report = Report::new(&contestants, tasks, self.targets, self.floor);
        let mut failures = 0;
        for round in 1..=self.rounds {
            for task in tasks {
                for contestant in turns(&contestants, round).filter(|it| task.suits(it)) {
                    let (name, job) = (contestant.name(), task.name());
                    match measure(contestant, task) {
                        Ok(outcome) => {
                            let record = Record::new(round, name, job, outcome);
                            csv.append(&record)?;
                            report.add(record);
                        }
                        Err(error) => {
                            failures += 1;
                            let line = format!("{name} {job}: {error:#}");
                            csv.note(&line)?;
                            println!("FAILED {line}");
                        }
                    }
                }
            }
            eprintln!("round {round} of {} done", self.rounds);
        }
        print!("{}", report.tables(self.subject));
        println!("\nraw figures: {}", csv.path().display());
        ensure!(failures == 0, "{failures} measurements failed");
        Ok(())
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

/// Calls `measure` with an empty directory below `out`, and removes it afterwards.
///
/// # Errors
/// The directory could not be made or removed, or those of `measure`.
pub(crate) fn in_directory(
    out: &Path,
    measure: impl FnOnce(&Path) -> Result<Outcome>,
) -> Result<Outcome> {
    let name = format!("work-{}", std::process::id());
    let directory = std::path::absolute(out.join(name))?;
    // What an earlier failure of this run left there has been reported.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    let outcome = measure(&directory);
    fs::remove_dir_all(&directory)?;
    outcome
}

/// Runs `peername-bench SUBCOMMAND CELL` in namespaces of its own and takes down what it said.
///
/// # Errors
/// It failed, with what it complained of, or took longer than `patience`.
pub(crate) fn run_cell(
    subcommand: &str,
    cell: &impl Serialize,
    patience: Duration,
) -> Result<Outcome> {
    let program = std::env::current_exe().context("own path")?;
    let child = namespace::enter(&program)
        .arg(subcommand)
        .arg(serde_json::to_string(cell)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run setpriv and unshare, of util-linux")?;
    let (succeeded, said, complaint) = finish(child, patience)?;
    ensure!(
        succeeded,
        "{}",
        complaint.trim().trim_start_matches("peername-bench: ")
    );
    serde_json::from_str(&said).with_context(|| format!("the cell said {said:?}"))
}

/// Another one begins each round, so nobody always runs in the wake of the same neighbour.
fn turns<C>(contestants: &[C], round: u32) -> impl Iterator<Item = &C> {
    let first = (round as usize - 1) % contestants.len().max(1);
    contestants
        .iter()
        .cycle()
        .skip(first)
        .take(contestants.len())
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

/// Waits for the end, or brings it about. Killing the outermost process ends all inside.
fn finish(mut child: Child, patience: Duration) -> Result<(bool, String, String)> {
    let deadline = Instant::now() + patience;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("not done within {patience:?}");
        }
        sleep(GLANCE);
    };
    let (mut said, mut complaint) = (String::new(), String::new());
    child
        .stdout
        .take()
        .context("no standard output")?
        .read_to_string(&mut said)?;
    child
        .stderr
        .take()
        .context("no standard error")?
        .read_to_string(&mut complaint)?;
    Ok((status.success(), said, complaint))
}

/// How often a running cell is looked at. Each look costs the measurement some microseconds.
const GLANCE: Duration = Duration::from_millis(50);
