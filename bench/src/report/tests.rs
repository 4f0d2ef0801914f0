use super::*;

#[test]
fn ratios_are_of_one_turn() {
    let mut report = report();
    for (turn, ours, theirs) in [(1, 2.0, 1.0), (2, 30.0, 10.0)] {
        report.add(record("ours", At { round: 1, turn }, ours, 0.0));
        report.add(record("theirs", At { round: 1, turn }, theirs, 0.0));
    }
    let theirs = |at| report.value("theirs", TASK, METRIC, at);
    let ratio = report.ratio("ours", TASK, METRIC, theirs);
    assert_eq!(ratio, Summary::of([2.0, 3.0].into_iter()));
}

#[test]
fn turns_of_a_round_are_disturbed_together() {
    let disturbed = |others: &[(u32, u32, f64)]| {
        let mut report = report();
        for &(round, turn, others) in others {
            report.add(record("ours", At { round, turn }, 1.0, others));
        }
        !report.is_quiet()
    };
    assert!(!disturbed(&[(1, 1, 8.0), (1, 2, 0.0)]));
    assert!(!disturbed(&[(1, 1, 5.0), (2, 1, 5.0)]));
    assert!(disturbed(&[(1, 1, 8.0), (2, 1, 0.0)]), "by rounds");
    assert!(disturbed(&[(1, 1, 8.0), (1, 2, 4.0)]));
}

fn report() -> Report {
    Report {
        contestants: Vec::new(),
        tasks: Vec::new(),
        targets: &[],
        floor: None,
        records: Vec::new(),
    }
}

fn record(contestant: &str, at: At, value: f64, others: f64) -> Record {
    let outcome = Outcome {
        identity: None,
        disturbance: Disturbance {
            others,
            stolen: 0.0,
        },
        metrics: vec![Metric::new(METRIC, value)],
    };
    Record::new(at, contestant, TASK, outcome)
}

const TASK: &str = "churn";
const METRIC: &str = "connections/s";
