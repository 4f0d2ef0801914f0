//! A quick run of the whole matrix: namespaces, backend, generator and the contestants that are installed.
//!
//! It needs root or user namespaces, as the matrix does. On a machine that has neither it fails: it must not pass
//! without a measurement.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[test]
fn every_workload_is_measured() {
    let out = fresh_directory("every");
    let output = matrix(&out, &["--subject", "direct"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");

    let mut entries: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    let [csv, chart] = entries.as_slice() else {
        panic!("expected the figures and the chart, found {entries:?}")
    };
    let chart = fs::read_to_string(chart).unwrap();
    for text in ["udp-echo: CPU us/echo", "naive"] {
        assert!(chart.contains(text), "{chart}");
    }
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
fn contestant_that_does_not_start_fails_the_run() {
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
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(
        stdout.contains("FAILED broken pingpong: broken does not listen"),
        "{stdout}"
    );
    assert!(
        stdout.contains("\ndirect "),
        "the others' figures are missing: {stdout}"
    );
}

/// The UDP baseline must be a transparent relay: otherwise its figures would be those of another task.
#[test]
fn naive_relay_connects_as_the_client() {
    let out = fresh_directory("naive");
    let output = matrix(&out, &["--only", "udp-echo", "--subject", "naive"]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    let naive = stdout.lines().find(|line| line.starts_with("naive: "));
    assert!(
        naive.is_some_and(|line| line.ends_with("the backend sees the client's address and port")),
        "{stdout}"
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
