//! Runs a comparison: contestants take turns at cases, in interleaved rounds.
//!
//! Rounds are interleaved (A B C, B C A, ...), so that whatever else the machine does meanwhile affects all
//! contestants alike. Each measurement runs in a process of its own, in namespaces of its own, see [`sandbox`];
//! this process starts the sandbox, waits for it, and records its results.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::compare::contestant::{Case, Contestant};
use crate::compare::options::Options;
use crate::compare::raw_results::RawResults;
use crate::compare::records::{Record, TurnId};
use crate::compare::report::Report;
use crate::compare::sandbox::Sandbox;
use crate::compare::target::Target;

pub(crate) mod chart;
pub(crate) mod contestant;
pub(crate) mod machine;
pub(crate) mod measurement;
pub(crate) mod options;
pub(crate) mod raw_results;
pub(crate) mod records;
pub(crate) mod report;
pub(crate) mod sandbox;
pub(crate) mod summary;
pub(crate) mod target;

/// What is compared, how often, and where the results go.
pub(crate) struct Comparison<'a, C: Contestant> {
    pub(crate) options: &'a Options,
    pub(crate) contestants: Vec<C>,
    pub(crate) cases: &'static [Case<C::Work>],
    /// The number and length of the measurements, as a note in the raw results.
    pub(crate) extent: String,
    /// What the subject has to reach.
    pub(crate) targets: &'static [Target],
    /// The contestant that does the minimum of work: it shows how much room a target leaves on this machine.
    pub(crate) floor: Option<&'static str>,
    /// The pause after the sandboxes of one group have ended.
    pub(crate) rest: Duration,
}

impl<C: Contestant> Comparison<'_, C> {
    /// Runs all measurements, prints the tables to standard output, and writes the raw results.
    ///
    /// # Errors
    /// A measurement of a contestant that takes part failed; the tables of those that succeeded are printed
    /// nevertheless.
    pub(crate) fn run(self, set_up: impl Fn(&C, &Case<C::Work>) -> Result<Sandbox>) -> Result<()> {
        let Options {
            subject,
            out,
            chart,
            ..
        } = self.options;
        let cases = self.options.select_cases(self.cases)?;
        let contestants = select_contestants(self.contestants, self.options, &cases)?;
        fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
        let raw_results = RawResults::create(out, &contestants, &self.extent)?;
        let report = Report::new(&contestants, &cases, self.targets, self.floor);
        let mut results = Results {
            raw_results,
            report,
            failures: 0,
        };
        let rounds = self.options.rounds();
        for round in 1..=rounds {
            for &case in &cases {
                let mut supported: Vec<_> = contestants
                    .iter()
                    .filter(|it| it.supports(&case.work))
                    .collect();
                // Another contestant begins each round, so none always runs after the same predecessor.
                let first = (round as usize - 1) % supported.len().max(1);
                supported.rotate_left(first);
                // With a single turn in a round, a contestant has the machine to itself.
                let group_size = if case.turns > 1 { supported.len() } else { 1 };
                for group in supported.chunks(group_size.max(1)) {
                    let sandboxes = group.iter().map(|it| (it.name(), set_up(it, case)));
                    results.take_turns(case, round, sandboxes.collect())?;
                    sleep(self.rest);
                }
            }
            eprintln!("round {round} of {rounds} done");
        }
        let Results {
            raw_results,
            report,
            failures,
        } = results;
        print!("{}", report.tables(subject));
        println!("\nraw figures: {}", raw_results.path().display());
        let chart = chart
            .clone()
            .unwrap_or_else(|| raw_results.path().with_extension("svg"));
        chart::write(&chart, &report.panels(subject))?;
        println!("chart: {}", chart.display());
        ensure!(failures == 0, "{failures} measurements failed");
        Ok(())
    }
}

/// The results so far.
struct Results {
    raw_results: RawResults,
    report: Report,
    failures: u32,
}

impl Results {
    /// Has each sandbox measure in its turn, as often as the case asks for, and then ends them.
    fn take_turns<W>(
        &mut self,
        case: &Case<W>,
        round: u32,
        sandboxes: Vec<(&str, Result<Sandbox>)>,
    ) -> Result<()> {
        let mut ready = Vec::new();
        for (name, sandbox) in sandboxes {
            match sandbox {
                Ok(sandbox) => ready.push((name, sandbox)),
                Err(error) => self.record_failure(name, case.name, &error)?,
            }
        }
        for turn in 1..=case.turns {
            let mut still_ready = Vec::new();
            for (name, mut sandbox) in ready {
                match sandbox.measure() {
                    Ok(measurement) => {
                        let turn = TurnId { round, turn };
                        let record = Record::new(turn, name, case.name, measurement);
                        self.raw_results.append(&record)?;
                        self.report.add(record);
                        still_ready.push((name, sandbox));
                    }
                    Err(error) => self.record_failure(name, case.name, &error)?,
                }
            }
            ready = still_ready;
            if !ready.is_empty() {
                ready.rotate_left(1);
            }
        }
        Ok(())
    }

    fn record_failure(&mut self, name: &str, case: &str, error: &anyhow::Error) -> Result<()> {
        self.failures += 1;
        let line = format!("{name} {case}: {error:#}");
        println!("FAILED {line}");
        self.raw_results.append_comment(&line)
    }
}

/// Removes the contestants that `--without` names, that support none of the cases, or that can't take part.
fn select_contestants<C: Contestant>(
    mut contestants: Vec<C>,
    options: &Options,
    cases: &[&Case<C::Work>],
) -> Result<Vec<C>> {
    for name in &options.without {
        let is_known = contestants.iter().any(|it| it.name() == name);
        ensure!(
            is_known && *name != options.subject,
            "can't leave out {name}"
        );
    }
    contestants.retain(|contestant| {
        let is_left_out = options.without.iter().any(|it| it == contestant.name());
        !is_left_out && cases.iter().any(|case| contestant.supports(&case.work))
    });
    Ok(skip_unavailable(contestants))
}

/// Removes the contestants that can't take part, and prints the reason for each.
fn skip_unavailable<C: Contestant>(contestants: Vec<C>) -> Vec<C> {
    contestants
        .into_iter()
        .filter(|contestant| match contestant.skip_reason() {
            None => true,
            Some(reason) => {
                println!("skipped {}: {reason}", contestant.name());
                false
            }
        })
        .collect()
}
