//! All contestants through all workloads, taking turns.
//!
//! Rounds are interleaved (A B C, B C A, ...): whatever else the machine does meanwhile then falls
//! on all alike. Each measurement is a process of its own in namespaces of its own, see
//! [`namespace`]; this process only starts it, waits, and writes down what it said.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cell::{Cell, Outcome};
use crate::load::Workload;
use crate::namespace;
use crate::proxies::{Contestant, Selection};
use crate::report::{Csv, Record, Report};

/// `peername-bench matrix`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    contestants: Selection,
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// How long each measurement takes
    #[arg(long = "for", value_name = "DURATION", default_value = "3s")]
    duration: humantime::Duration,
    /// One round of half seconds with few idle connections: does everything work?
    #[arg(long, conflicts_with_all = ["rounds", "duration"])]
    quick: bool,
    /// Only these workloads, named as in the tables
    #[arg(long = "only", value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Whom to compare with the others
    #[arg(long, value_name = "NAME", default_value = "peername")]
    subject: String,
    /// Where the raw figures go
    #[arg(long, value_name = "DIR", default_value = "bench/out")]
    out: PathBuf,
}

/// A row of the matrix: a workload and its size.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    workload: Workload,
    connections: usize,
}

/// Every workload that is run. Names stand in the raw figures: change the name with the meaning.
const TASKS: &[Task] = &[
    Task {
        name: "pingpong",
        workload: Workload::Pingpong,
        connections: 50,
    },
    Task {
        name: "bulk-1",
        workload: Workload::Bulk,
        connections: 1,
    },
    Task {
        name: "bulk-4",
        workload: Workload::Bulk,
        connections: 4,
    },
    Task {
        name: "churn",
        workload: Workload::Churn,
        connections: 50,
    },
    Task {
        name: "idle",
        workload: Workload::Idle,
        connections: 5_000,
    },
    Task {
        name: "udp-echo",
        workload: Workload::UdpEcho,
        connections: 50,
    },
    Task {
        name: "udp-echo-shared",
        workload: Workload::UdpEchoShared,
        connections: 50,
    },
    Task {
        name: "udp-echo-window",
        workload: Workload::UdpEchoWindow,
        connections: 50,
    },
    Task {
        name: "udp-stream",
        workload: Workload::UdpStream,
        connections: 4,
    },
];

impl Task {
    /// Whether the contestant can do this work at all.
    pub(crate) fn suits(&self, contestant: &Contestant) -> bool {
        contestant.carries(self.workload.transport())
    }
}

/// Runs the matrix, prints the tables to standard output, and writes the raw figures.
///
/// # Errors
/// A contestant that takes part lost a byte or a connection, or did not start; the tables of what
/// worked are printed nevertheless.
pub(crate) fn run(args: &Args) -> Result<()> {
    let tasks = args.tasks()?;
    let mut contestants = args.contestants.contestants()?;
    contestants.retain(|contestant| tasks.iter().any(|task| task.suits(contestant)));
    let contestants = present(contestants);
    fs::create_dir_all(&args.out).with_context(|| format!("create {}", args.out.display()))?;
    let (rounds, duration) = (args.rounds(), humantime::format_duration(args.duration()));
    let extent = format!("{rounds} rounds, {duration} each");
    let mut csv = Csv::create(&args.out, &contestants, &extent)?;
    let mut report = Report::new(&contestants, &tasks);
    let mut failures = 0;
    for round in 1..=rounds {
        for task in &tasks {
            for contestant in turns(&contestants, round).filter(|it| task.suits(it)) {
                let record = |outcome| Record::new(round, contestant, task, outcome);
                match args.measure(contestant, task) {
                    Ok(outcome) => {
                        let record = record(outcome);
                        csv.append(&record)?;
                        report.add(record);
                    }
                    Err(error) => {
                        failures += 1;
                        let line = format!("{} {}: {error:#}", contestant.name(), task.name);
                        csv.note(&line)?;
                        println!("FAILED {line}");
                    }
                }
            }
        }
        eprintln!("round {round} of {rounds} done");
    }
    print!("{}", report.tables(&args.subject));
    println!("\nraw figures: {}", csv.path().display());
    ensure!(failures == 0, "{failures} measurements failed");
    Ok(())
}

/// Another one begins each round, so nobody always runs in the wake of the same neighbour.
fn turns(contestants: &[Contestant], round: u32) -> impl Iterator<Item = &Contestant> {
    let first = (round as usize - 1) % contestants.len().max(1);
    contestants
        .iter()
        .cycle()
        .skip(first)
        .take(contestants.len())
}

/// Says who is left out and why.
fn present(contestants: Vec<Contestant>) -> Vec<Contestant> {
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

impl Args {
    fn tasks(&self) -> Result<Vec<&'static Task>> {
        for name in &self.only {
            ensure!(
                TASKS.iter().any(|task| task.name == name),
                "there is no workload {name}"
            );
        }
        let is_wanted =
            |task: &&Task| self.only.is_empty() || self.only.iter().any(|name| name == task.name);
        Ok(TASKS.iter().filter(is_wanted).collect())
    }

    fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.rounds }
    }

    fn duration(&self) -> Duration {
        if self.quick { QUICK } else { *self.duration }
    }

    fn connections(&self, task: &Task) -> usize {
        let wanted = if self.quick {
            task.connections.min(QUICK_CONNECTIONS)
        } else {
            task.connections
        };
        // A proxy needs two descriptors for each, and some for itself.
        let possible = namespace::descriptors().saturating_sub(SPARE_DESCRIPTORS) / 2;
        wanted.min(usize::try_from(possible).unwrap_or(usize::MAX))
    }

    fn measure(&self, contestant: &Contestant, task: &Task) -> Result<Outcome> {
        let name = format!("work-{}", std::process::id());
        let directory = std::path::absolute(self.out.join(name))?;
        // What an earlier failure of this run left there has been reported.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let cell = Cell {
            contestant: contestant.clone(),
            workload: task.workload,
            connections: self.connections(task),
            duration: self.duration(),
            watch: self.contestants.watch(),
            directory: directory.clone(),
        };
        let outcome = run_cell(&cell);
        fs::remove_dir_all(&directory)?;
        if !self.quick {
            sleep(REST);
        }
        outcome
    }
}

/// Runs `peername-bench cell` in namespaces of its own and takes down what it said.
fn run_cell(cell: &Cell) -> Result<Outcome> {
    let program = std::env::current_exe().context("own path")?;
    let child = namespace::enter(&program)
        .arg("cell")
        .arg(serde_json::to_string(cell)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("run setpriv and unshare, of util-linux")?;
    let (succeeded, said, complaint) = finish(child, cell.duration + ALLOWANCE)?;
    ensure!(
        succeeded,
        "{}",
        complaint.trim().trim_start_matches("peername-bench: ")
    );
    serde_json::from_str(&said).with_context(|| format!("the cell said {said:?}"))
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

/// How often a running cell is looked at. Each look costs the measurement some microseconds.
const GLANCE: Duration = Duration::from_millis(50);
