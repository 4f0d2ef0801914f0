//! The whole matrix in small: namespaces, backend, generator and whichever peers are installed.
//!
//! Needs root or user namespaces, as the matrix does; a machine that has neither fails it, rather
//! than passing without having measured anything.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn every_workload_is_measured() {
    let out = fresh_directory("every");
    let output = matrix(&out, &["--subject", "direct"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complaint}");

    let entries: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    let [csv] = entries.as_slice() else {
        panic!("expected one file, found {entries:?}")
    };
    let text = fs::read_to_string(csv).unwrap();
    for row in [
        "direct,pingpong,echoes/s",
        "direct,bulk-1,MB/s",
        "direct,bulk-4,MB/s",
        "direct,churn,connections/s",
        "direct,idle,wake us",
        "direct,udp-echo,echoes/s",
        "direct,udp-echo-shared,echoes/s",
        "direct,udp-echo-window,echoes/s",
        "direct,udp-stream,datagrams/s",
        "naive,udp-echo,CPU us/echo",
        "naive,udp-echo-shared,CPU us/echo",
        "naive,udp-stream,CPU us/datagram",
    ] {
        let row = format!("1,1,{row},");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(&row)?.split(',').next());
        let value = value.and_then(|value| value.parse::<f64>().ok());
        assert!(
            value.is_some_and(|value| value > 0.0),
            "no figure for {row} in:\n{text}"
        );
    }
}

#[test]
fn a_contestant_that_does_not_start_fails_the_run() {
    let out = fresh_directory("broken");
    let output = matrix(
        &out,
        &[
            "--only",
            "pingpong",
            "--proxy",
            "broken=/bin/false {listen}",
        ],
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("FAILED broken pingpong: broken does not listen"),
        "{said}"
    );
    assert!(
        said.contains("\ndirect "),
        "the others' figures are missing: {said}"
    );
}

/// The yardstick for UDP is a transparent relay, or its figures are those of another task.
#[test]
fn the_naive_relay_is_the_client() {
    let out = fresh_directory("naive");
    let output = matrix(&out, &["--only", "udp-echo", "--subject", "naive"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let naive = said.lines().find(|line| line.starts_with("naive: "));
    assert!(
        naive.is_some_and(|line| line.ends_with("the backend sees the client's address and port")),
        "{said}"
    );
}

fn matrix(out: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peername-bench"))
        .args(["matrix", "--quick", "--out"])
        .arg(out)
        .args(arguments)
        .output()
        .unwrap()
}

fn fresh_directory(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    path
}
