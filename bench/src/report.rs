//! From figures to tables: medians, ratios, and the targets.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::cell::{Identity, Outcome};
use crate::load::Metric;
use crate::neighbours::Disturbance;
use crate::rounds::{Contender, Task};

use summary::{Summary, number};
pub(crate) use targets::{Bound, TARGETS, Target};

mod summary;
mod targets;

/// Which of a contestant's measurements; both are counted from 1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) round: u32,
    pub(crate) turn: u32,
}

/// The figures of one measurement.
pub(crate) struct Record {
    at: At,
    contestant: String,
    task: &'static str,
    identity: Option<Identity>,
    disturbance: Disturbance,
    metrics: Vec<Metric>,
}

impl Record {
    pub(crate) fn new(at: At, contestant: &str, task: &'static str, outcome: Outcome) -> Self {
        let Outcome {
            identity,
            disturbance,
            metrics,
        } = outcome;
        Self {
            at,
            contestant: contestant.to_owned(),
            task,
            identity,
            disturbance,
            metrics,
        }
    }
}

/// The raw figures, one line each, written as they come: a run that is broken off keeps what it
/// has.
pub(crate) struct Csv {
    path: PathBuf,
    file: File,
}

impl Csv {
    /// Opens a new file in `directory` and writes down what the figures depend on.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn create(
        directory: &Path,
        contestants: &[impl Contender],
        extent: &str,
    ) -> Result<Self> {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let path = directory.join(format!("{}.csv", now.replace(':', "")));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        let mut csv = Self { path, file };
        csv.note(&format!("date {now}"))?;
        csv.note(&machine())?;
        csv.note(extent)?;
        for contestant in contestants {
            csv.note(&format!("{}: {}", contestant.name(), contestant.version()))?;
        }
        writeln!(
            csv.file,
            "round,turn,contestant,workload,metric,value,backend_sees,others_percent,stolen_percent"
        )?;
        Ok(csv)
    }

    /// # Errors
    /// The file could not be written.
    pub(crate) fn append(&mut self, record: &Record) -> Result<()> {
        let Record {
            at: At { round, turn },
            contestant,
            task,
            identity,
            disturbance,
            ..
        } = record;
        let sees = identity.map_or("-", Identity::word);
        let Disturbance { others, stolen } = disturbance;
        for Metric { name, value } in &record.metrics {
            writeln!(
                self.file,
                "{round},{turn},{contestant},{task},{name},{value},{sees},{others:.1},{stolen:.1}"
            )?;
        }
        Ok(())
    }

    /// A line for people.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn note(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.file, "# {}", line.replace('\n', " "))?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Kernel, its congestion control, cores and processor.
fn machine() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let congestion = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let congestion = congestion.unwrap_or_default();
    format!(
        "kernel {}, TCP by {}, {cores} cores, {model}",
        release.trim(),
        congestion.trim()
    )
}

/// All figures of a run.
pub(crate) struct Report {
    contestants: Vec<(String, String)>,
    /// Each with those that do such work at all.
    tasks: Vec<(&'static str, Vec<String>)>,
    targets: &'static [Target],
    /// Whose figures stand beside the targets, where it takes part.
    floor: Option<&'static str>,
    records: Vec<Record>,
}

impl Report {
    pub(crate) fn new<C: Contender>(
        contestants: &[C],
        tasks: &[&impl Task<C>],
        targets: &'static [Target],
        floor: Option<&'static str>,
    ) -> Self {
        let describe = |contestant: &C| (contestant.name().to_owned(), contestant.version());
        Self {
            contestants: contestants.iter().map(describe).collect(),
            tasks: tasks
                .iter()
                .map(|task| (task.name(), participants(*task, contestants)))
                .filter(|(_, participants)| !participants.is_empty())
                .collect(),
            targets,
            floor: floor.filter(|floor| contestants.iter().any(|it| it.name() == *floor)),
            records: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, record: Record) {
        self.records.push(record);
    }

    /// What is printed: the figures, whom the backend saw, the ratios and the targets.
    pub(crate) fn tables(&self, subject: &str) -> String {
        let mut text = format!("{}\n", machine());
        for (task, participants) in &self.tasks {
            let _ = write!(text, "\n{}", align(&self.figures(task, participants)));
        }
        text.push('\n');
        for (name, version) in &self.contestants {
            let identity = self
                .records
                .iter()
                .find(|record| record.contestant == *name);
            let remark = match identity.map(|record| record.identity) {
                None => "; nothing measured",
                Some(None) => "",
                Some(Some(identity)) => identity.describe(),
            };
            let _ = writeln!(text, "{name}: {version}{remark}");
        }
        text.push_str(&self.disturbance());
        text.push('\n');
        if self.contestants.iter().any(|(name, _)| name == subject) {
            text.push_str(&align(&self.ratios(subject)));
            text.push('\n');
            text.push_str(&align(&self.verdicts(subject)));
        } else {
            let _ = writeln!(
                text,
                "no ratios and no targets: {subject} did not take part"
            );
        }
        text
    }

    /// One row a contestant, one column a metric.
    fn figures(&self, task: &str, participants: &[String]) -> Vec<Vec<String>> {
        let metrics = self.metrics(task);
        let mut rows = vec![vec![task.to_owned()]];
        rows[0].extend(metrics.iter().map(|metric| (*metric).to_owned()));
        for contestant in participants {
            let cells = metrics.iter().map(|metric| {
                let values = self.values(contestant, task, metric);
                Summary::of(values.map(|(_, value)| value)).map_or_else(none, |it| it.to_string())
            });
            rows.push(std::iter::once(contestant.clone()).chain(cells).collect());
        }
        rows
    }

    /// Whether the machine was ours.
    fn disturbance(&self) -> String {
        let all = || self.records.iter().map(|record| record.disturbance);
        let others = Summary::of(all().map(|it| it.others));
        let stolen = Summary::of(all().map(|it| it.stolen));
        let (Some(others), Some(stolen)) = (others, stolen) else {
            return String::new();
        };
        let warning = if self.is_quiet() {
            ""
        } else {
            ": NOT QUIET, rates and CPU figures do not compare well"
        };
        format!(
            "other programs used {others} % of the machine, {stolen} % for the hypervisor's other guests{warning}\n"
        )
    }

    /// Whether no measurement was disturbed. Turns of one round are one: in a short one, a moment's work of somebody
    /// else is a large part.
    fn is_quiet(&self) -> bool {
        let others = |of: &Record| {
            let turns = self.records.iter().filter(|it| {
                (it.task, &it.contestant, it.at.round) == (of.task, &of.contestant, of.at.round)
            });
            let (sum, turns) = turns.fold((0.0, 0.0), |(sum, turns), it| {
                (sum + it.disturbance.others, turns + 1.0)
            });
            sum / turns
        };
        self.records
            .iter()
            .filter(|record| record.at.turn == 1)
            .all(|record| others(record) <= QUIET)
    }

    /// One row a metric, one column a peer.
    fn ratios(&self, subject: &str) -> Vec<Vec<String>> {
        let peers: Vec<_> = self
            .contestants
            .iter()
            .map(|(name, _)| name)
            .filter(|name| *name != subject)
            .collect();
        let mut rows = vec![vec![format!("{subject} :")]];
        rows[0].extend(peers.iter().map(|peer| (*peer).clone()));
        for (task, _) in &self.tasks {
            for metric in self.metrics(task) {
                let cells = peers.iter().map(|peer| {
                    let other = |at| self.value(peer, task, metric, at);
                    self.ratio(subject, task, metric, other)
                        .map_or_else(none, |it| it.to_string())
                });
                rows.push(
                    std::iter::once(format!("{task} {metric}"))
                        .chain(cells)
                        .collect(),
                );
            }
        }
        rows
    }

    fn verdicts(&self, subject: &str) -> Vec<Vec<String>> {
        let verdict = if self.is_quiet() {
            "verdict"
        } else {
            "verdict (machine not quiet)"
        };
        let mut rows = vec![["target", "is", verdict].map(str::to_owned).to_vec()];
        rows[0].extend(self.floor.into_iter().flat_map(|floor| {
            let share = format!("{floor}, % of the target");
            [floor.to_owned(), share]
        }));
        for target in self.targets.iter().filter(|target| self.concerns(target)) {
            let is = self.reached(target.of.unwrap_or(subject), target);
            let verdict = match &is {
                None => "not measured",
                Some(is) if target.is_met(is.median) => "met",
                Some(_) => "NOT MET",
            };
            let is = is.map_or_else(none, |it| it.to_string());
            let mut row = vec![target.to_string(), is, verdict.to_owned()];
            // Well above 100 % of what must not be exceeded, the target is one that nobody meets.
            row.extend(self.floor.into_iter().flat_map(|floor| {
                let is = self.reached(floor, target);
                let share = is.map_or_else(none, |is| number(target.share(is.median)));
                [is.map_or_else(none, |is| is.to_string()), share]
            }));
            rows.push(row);
        }
        rows
    }

    /// What a target bounds: a contestant's metric, or its ratio to the best peer's.
    fn reached(&self, whose: &str, target: &Target) -> Option<Summary> {
        match target.peers {
            [] => {
                let values = self.values(whose, target.task, target.metric);
                Summary::of(values.map(|(_, value)| value))
            }
            peers => self.ratio(whose, target.task, target.metric, |at| {
                let figures = peers
                    .iter()
                    .filter_map(|peer| self.value(peer, target.task, target.metric, at));
                target.best(figures)
            }),
        }
    }

    /// Whether the workload was run, and by those whom the target names.
    fn concerns(&self, target: &Target) -> bool {
        let takes_part = |of: &str| self.contestants.iter().any(|(name, _)| name == of);
        let is_run = self.tasks.iter().any(|(task, _)| *task == target.task);
        let has_peer = target.peers.is_empty() || target.peers.iter().any(|peer| takes_part(peer));
        is_run && target.of.is_none_or(takes_part) && has_peer
    }

    /// Ratios are taken turn by turn and summed up afterwards: what slowed a whole turn slowed
    /// both, and cancels. What is to nothing, as losses are, has no ratio.
    fn ratio(
        &self,
        subject: &str,
        task: &str,
        metric: &str,
        other: impl Fn(At) -> Option<f64>,
    ) -> Option<Summary> {
        Summary::of(
            self.values(subject, task, metric)
                .filter_map(|(at, value)| Some(value / other(at)?))
                .filter(|ratio| ratio.is_finite()),
        )
    }

    fn value(&self, contestant: &str, task: &str, metric: &str, at: At) -> Option<f64> {
        let mut values = self.values(contestant, task, metric);
        values.find_map(|(other, value)| (other == at).then_some(value))
    }

    /// The metrics that anyone has for a task, in the order of whoever has most.
    fn metrics(&self, task: &str) -> Vec<&str> {
        let records = self.records.iter().filter(|record| record.task == task);
        let fullest = records.max_by_key(|record| record.metrics.len());
        fullest.map_or_else(Vec::new, |record| {
            record
                .metrics
                .iter()
                .map(|metric| metric.name.as_str())
                .collect()
        })
    }

    /// The figures of all rounds.
    fn values(
        &self,
        contestant: &str,
        task: &str,
        metric: &str,
    ) -> impl Iterator<Item = (At, f64)> {
        self.records
            .iter()
            .filter(move |record| record.contestant == contestant && record.task == task)
            .filter_map(move |record| {
                let metric = record.metrics.iter().find(|it| it.name == metric)?;
                Some((record.at, metric.value))
            })
    }
}

fn participants<C: Contender>(task: &impl Task<C>, contestants: &[C]) -> Vec<String> {
    let participants = contestants.iter().filter(|it| task.suits(it));
    participants.map(|it| it.name().to_owned()).collect()
}

fn none() -> String {
    String::from("-")
}

/// Columns under each other: the first to the left, the others to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| Some(row.get(column)?.len()))
            .max()
    };
    let widths: Vec<usize> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

/// Per cent of the machine. Counting by clock ticks and the kernel's own threads come to 1 or 2.
const QUIET: f64 = 5.0;

#[cfg(test)]
mod tests;
