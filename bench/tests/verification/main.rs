//! Fault injection: the benchmark must detect everything that a relay can do wrong.

mod tcp;
mod udp;

use std::process::Output;

#[track_caller]
fn assert_fails(workload: &str, output: &Output, words: &str) {
    assert!(
        !output.status.success(),
        "{workload} did not detect the fault"
    );
    let message = error_message(output);
    assert!(
        message.contains(words),
        "{workload} should report {words:?} but reported: {message}"
    );
}

#[track_caller]
fn assert_passes(workload: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{workload}: {}",
        error_message(output)
    );
}

fn error_message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
