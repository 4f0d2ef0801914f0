//! All measurements of a run, and the queries that the report makes on them.

use crate::compare::measurement::{Measurement, Metric, ObservedSource};
use crate::compare::summary::Summary;
use crate::host::background_load::BackgroundLoad;

/// A contestant's turn in a round; both are counted from 1.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TurnId {
    pub(crate) round: u32,
    pub(crate) turn: u32,
}

/// One measurement, with the contestant, the case and the turn that it belongs to.
pub(crate) struct Record {
    pub(crate) turn: TurnId,
    pub(crate) contestant: String,
    pub(crate) case: &'static str,
    pub(crate) observed: Option<ObservedSource>,
    pub(crate) background: BackgroundLoad,
    pub(crate) metrics: Vec<Metric>,
}

impl Record {
    pub(crate) fn new(
        turn: TurnId,
        contestant: &str,
        case: &'static str,
        measurement: Measurement,
    ) -> Self {
        let Measurement {
            observed,
            background,
            metrics,
        } = measurement;
        Self {
            turn,
            contestant: contestant.to_owned(),
            case,
            observed,
            background,
            metrics,
        }
    }
}

/// All measurements of a run.
#[derive(Default)]
pub(crate) struct Records {
    all: Vec<Record>,
}

impl Records {
    pub(crate) fn add(&mut self, record: Record) {
        self.all.push(record);
    }

    /// The first record of a contestant.
    pub(crate) fn first_of(&self, contestant: &str) -> Option<&Record> {
        self.all.iter().find(|it| it.contestant == contestant)
    }

    /// The background load of each measurement.
    pub(crate) fn background_loads(&self) -> impl Iterator<Item = BackgroundLoad> {
        self.all.iter().map(|record| record.background)
    }

    /// Whether no measurement was disturbed. The turns of one round are averaged: in a short turn, a moment's work of
    /// another program is a large part.
    pub(crate) fn is_quiet(&self) -> bool {
        self.all
            .iter()
            .filter(|record| record.turn.turn == 1)
            .all(|first| self.mean_background_load(first) <= MAX_QUIET_PERCENT)
    }

    /// The mean load by other programs in the round that `first` begins.
    fn mean_background_load(&self, first: &Record) -> f64 {
        let loads: Vec<f64> = self
            .all
            .iter()
            .filter(|it| {
                (it.case, &it.contestant, it.turn.round)
                    == (first.case, &first.contestant, first.turn.round)
            })
            .map(|record| record.background.others)
            .collect();
        loads.iter().sum::<f64>() / loads.len() as f64
    }

    /// The names of the metrics of a case, in the order of the record that has the most.
    pub(crate) fn metric_names(&self, case: &str) -> Vec<&str> {
        let records = self.all.iter().filter(|record| record.case == case);
        let fullest = records.max_by_key(|record| record.metrics.len());
        fullest.map_or_else(Vec::new, |record| {
            record
                .metrics
                .iter()
                .map(|metric| metric.name.as_str())
                .collect()
        })
    }

    /// The summary of a metric over all rounds.
    pub(crate) fn summary(&self, contestant: &str, case: &str, metric: &str) -> Option<Summary> {
        let values = self.values(contestant, case, metric);
        Summary::from_values(values.map(|(_, value)| value))
    }

    /// The ratio of the subject's metric to `baseline`, summarized over all turns.
    ///
    /// Ratios are taken turn by turn and summarized afterwards: whatever slows a whole turn slows both
    /// contestants, and cancels. A division by zero, as with losses, has no ratio.
    pub(crate) fn ratio(
        &self,
        subject: &str,
        case: &str,
        metric: &str,
        baseline: impl Fn(TurnId) -> Option<f64>,
    ) -> Option<Summary> {
        Summary::from_values(
            self.values(subject, case, metric)
                .filter_map(|(turn, value)| Some(value / baseline(turn)?))
                .filter(|ratio| ratio.is_finite()),
        )
    }

    /// The value of a metric in one turn.
    pub(crate) fn value(
        &self,
        contestant: &str,
        case: &str,
        metric: &str,
        turn: TurnId,
    ) -> Option<f64> {
        let mut values = self.values(contestant, case, metric);
        values.find_map(|(other, value)| (other == turn).then_some(value))
    }

    /// The values of a metric in all rounds.
    fn values(
        &self,
        contestant: &str,
        case: &str,
        metric: &str,
    ) -> impl Iterator<Item = (TurnId, f64)> {
        self.all
            .iter()
            .filter(move |record| record.contestant == contestant && record.case == case)
            .filter_map(move |record| {
                let metric = record.metrics.iter().find(|it| it.name == metric)?;
                Some((record.turn, metric.value))
            })
    }
}

/// Per cent of the machine that other programs may use. Counting by clock ticks and the kernel's own threads
/// amount to 1 or 2.
const MAX_QUIET_PERCENT: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_turn_by_turn() {
        let mut records = Records::default();
        for (turn, ours, theirs) in [(1, 2.0, 1.0), (2, 30.0, 10.0)] {
            records.add(record("ours", TurnId { round: 1, turn }, ours, 0.0));
            records.add(record("theirs", TurnId { round: 1, turn }, theirs, 0.0));
        }
        let theirs = |turn| records.value("theirs", CASE, METRIC, turn);
        let ratio = records.ratio("ours", CASE, METRIC, theirs);
        assert_eq!(ratio, Summary::from_values([2.0, 3.0].into_iter()));
    }

    #[test]
    fn background_load_is_averaged_over_the_turns_of_a_round() {
        let is_disturbed = |turns: &[(u32, u32, f64)]| {
            let mut records = Records::default();
            for &(round, turn, others) in turns {
                records.add(record("ours", TurnId { round, turn }, 1.0, others));
            }
            !records.is_quiet()
        };
        assert!(!is_disturbed(&[(1, 1, 8.0), (1, 2, 0.0)]));
        assert!(!is_disturbed(&[(1, 1, 5.0), (2, 1, 5.0)]));
        assert!(is_disturbed(&[(1, 1, 8.0), (2, 1, 0.0)]));
        assert!(is_disturbed(&[(1, 1, 8.0), (1, 2, 4.0)]));
    }

    fn record(contestant: &str, turn: TurnId, value: f64, others: f64) -> Record {
        let measurement = Measurement {
            observed: None,
            background: BackgroundLoad {
                others,
                stolen: 0.0,
            },
            metrics: vec![Metric::new(METRIC, value)],
        };
        Record::new(turn, contestant, CASE, measurement)
    }

    const CASE: &str = "churn";
    const METRIC: &str = "connections/s";
}
