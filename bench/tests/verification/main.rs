//! The benchmark must notice everything that a relay can do wrong. Here somebody does it on purpose.

mod tcp;
mod udp;

use std::process::Output;

#[track_caller]
fn expect(workload: &str, output: &Output, words: &str) {
    assert!(!output.status.success(), "{workload} did not notice");
    let said = complaint(output);
    assert!(
        said.contains(words),
        "{workload} should say {words:?} but said: {said}"
    );
}

#[track_caller]
fn passes(workload: &str, output: &Output) {
    assert!(output.status.success(), "{workload}: {}", complaint(output));
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
