//! The printed tables: medians, ratios, and the targets.

use std::fmt::Write as _;

use crate::compare::chart::{Bar, Panel};
use crate::compare::contestant::{Case, Contestant};
use crate::compare::machine::describe_machine;
use crate::compare::measurement::ObservedSource;
use crate::compare::records::{Record, Records};
use crate::compare::summary::{Summary, format_number};
use crate::compare::target::Target;

/// Collects the measurements of a run and prints them as tables.
pub(crate) struct Report {
    /// Name and version of each contestant.
    contestants: Vec<(String, String)>,
    /// Name of each case, with the contestants that support it.
    cases: Vec<(&'static str, Vec<String>)>,
    targets: &'static [Target],
    /// The contestant with the minimum of work, if it takes part: its figures are printed beside the targets.
    floor: Option<&'static str>,
    records: Records,
}

impl Report {
    pub(crate) fn new<C: Contestant>(
        contestants: &[C],
        cases: &[&Case<C::Work>],
        targets: &'static [Target],
        floor: Option<&'static str>,
    ) -> Self {
        Self {
            contestants: contestants
                .iter()
                .map(|contestant| (contestant.name().to_owned(), contestant.version()))
                .collect(),
            cases: cases
                .iter()
                .map(|case| (case.name, participants(case, contestants)))
                .filter(|(_, participants)| !participants.is_empty())
                .collect(),
            targets,
            floor: floor.filter(|floor| contestants.iter().any(|it| it.name() == *floor)),
            records: Records::default(),
        }
    }

    pub(crate) fn add(&mut self, record: Record) {
        self.records.add(record);
    }

    /// All that is printed: the figures, the source that the backend observed, the ratios and the targets.
    pub(crate) fn tables(&self, subject: &str) -> String {
        let mut text = format!("{}\n", describe_machine());
        for (case, participants) in &self.cases {
            let _ = write!(text, "\n{}", align(&self.figures(case, participants)));
        }
        text.push('\n');
        for (name, version) in &self.contestants {
            let remark = match self.records.first_of(name) {
                None => "; nothing measured",
                Some(record) => record.observed.map_or("", ObservedSource::describe),
            };
            let _ = writeln!(text, "{name}: {version}{remark}");
        }
        text.push_str(&self.background());
        text.push('\n');
        if self.is_contestant(subject) {
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

    /// The panels of the chart: one for each case that has a CPU metric.
    pub(crate) fn panels(&self, subject: &str) -> Vec<Panel> {
        self.cases
            .iter()
            .filter_map(|(case, participants)| self.panel(case, participants, subject))
            .collect()
    }

    fn panel(&self, case: &str, participants: &[String], subject: &str) -> Option<Panel> {
        let metrics = self.records.metric_names(case);
        let metric = *metrics.iter().find(|metric| metric.starts_with("CPU "))?;
        let bars = participants.iter().filter_map(|contestant| {
            Some(Bar {
                contestant: contestant.clone(),
                figure: self.records.summary(contestant, case, metric)?,
                is_subject: contestant == subject,
            })
        });
        Some(Panel {
            title: format!("{case}: {metric}"),
            bars: bars.collect(),
        })
    }

    /// The table of a case: one row a contestant, one column a metric.
    fn figures(&self, case: &str, participants: &[String]) -> Vec<Vec<String>> {
        let metrics = self.records.metric_names(case);
        let mut rows = vec![vec![case.to_owned()]];
        rows[0].extend(metrics.iter().map(|metric| (*metric).to_owned()));
        for contestant in participants {
            let entries = metrics.iter().map(|metric| {
                let summary = self.records.summary(contestant, case, metric);
                summary.map_or_else(empty_entry, |it| it.to_string())
            });
            rows.push(std::iter::once(contestant.clone()).chain(entries).collect());
        }
        rows
    }

    /// The line about background load.
    fn background(&self) -> String {
        let others = Summary::from_values(self.records.background_loads().map(|it| it.others));
        let stolen = Summary::from_values(self.records.background_loads().map(|it| it.stolen));
        let (Some(others), Some(stolen)) = (others, stolen) else {
            return String::new();
        };
        let warning = if self.records.is_quiet() {
            ""
        } else {
            ": NOT QUIET, rates and CPU figures do not compare well"
        };
        format!(
            "other programs used {others} % of the machine, of which {stolen} % went to the hypervisor's other guests{warning}\n"
        )
    }

    /// The table of ratios: one row a metric, one column for each other contestant.
    fn ratios(&self, subject: &str) -> Vec<Vec<String>> {
        let others: Vec<_> = self
            .contestants
            .iter()
            .map(|(name, _)| name)
            .filter(|name| *name != subject)
            .collect();
        let mut rows = vec![vec![format!("{subject} :")]];
        rows[0].extend(others.iter().map(|other| (*other).clone()));
        for (case, _) in &self.cases {
            for metric in self.records.metric_names(case) {
                let entries = others.iter().map(|other| {
                    let baseline = |turn| self.records.value(other, case, metric, turn);
                    self.records
                        .ratio(subject, case, metric, baseline)
                        .map_or_else(empty_entry, |it| it.to_string())
                });
                rows.push(
                    std::iter::once(format!("{case} {metric}"))
                        .chain(entries)
                        .collect(),
                );
            }
        }
        rows
    }

    /// The table of targets: one row a target, with its value and verdict.
    fn verdicts(&self, subject: &str) -> Vec<Vec<String>> {
        let verdict = if self.records.is_quiet() {
            "verdict"
        } else {
            "verdict (machine not quiet)"
        };
        let mut rows = vec![["target", "is", verdict].map(str::to_owned).to_vec()];
        rows[0].extend(self.floor.into_iter().flat_map(|floor| {
            let share = format!("{floor}, % of the target");
            [floor.to_owned(), share]
        }));
        for target in self.targets.iter().filter(|target| self.applies(target)) {
            let actual = self.actual(target.contestant.unwrap_or(subject), target);
            let verdict = match &actual {
                None => "not measured",
                Some(actual) if target.is_met(actual.median) => "met",
                Some(_) => "NOT MET",
            };
            let actual = actual.map_or_else(empty_entry, |it| it.to_string());
            let mut row = vec![target.to_string(), actual, verdict.to_owned()];
            // Where the floor is well above 100 % of an upper bound, no contestant can meet the target.
            row.extend(self.floor.into_iter().flat_map(|floor| {
                let actual = self.actual(floor, target);
                let share = actual.map_or_else(empty_entry, |actual| {
                    format_number(target.percent_of_bound(actual.median))
                });
                [
                    actual.map_or_else(empty_entry, |actual| actual.to_string()),
                    share,
                ]
            }));
            rows.push(row);
        }
        rows
    }

    /// The value that a target bounds: a contestant's metric, or its ratio to the best baseline's.
    fn actual(&self, contestant: &str, target: &Target) -> Option<Summary> {
        let Target { case, metric, .. } = target;
        match target.baselines {
            [] => self.records.summary(contestant, case, metric),
            baselines => self.records.ratio(contestant, case, metric, |turn| {
                let figures = baselines
                    .iter()
                    .filter_map(|baseline| self.records.value(baseline, case, metric, turn));
                target.best(figures)
            }),
        }
    }

    /// Whether the target's case was run, with the contestants that the target names.
    fn applies(&self, target: &Target) -> bool {
        let is_run = self.cases.iter().any(|(case, _)| *case == target.case);
        let has_baseline = target.baselines.is_empty()
            || target.baselines.iter().any(|name| self.is_contestant(name));
        let has_contestant = target.contestant.is_none_or(|it| self.is_contestant(it));
        is_run && has_contestant && has_baseline
    }

    fn is_contestant(&self, name: &str) -> bool {
        self.contestants.iter().any(|(it, _)| it == name)
    }
}

fn participants<C: Contestant>(case: &Case<C::Work>, contestants: &[C]) -> Vec<String> {
    let participants = contestants.iter().filter(|it| it.supports(&case.work));
    participants.map(|it| it.name().to_owned()).collect()
}

fn empty_entry() -> String {
    String::from("-")
}

/// Aligns columns: the first to the left, the others to the right.
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
        for (column, (entry, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{entry:width$}"),
                _ => write!(text, "  {entry:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}
