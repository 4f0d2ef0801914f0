//! The whole matrix in small: namespaces, backend, generator and whichever peers are installed.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Needs root or user namespaces, as the matrix does; a machine that has neither fails it, rather
/// than passing without having measured anything.
#[test]
fn quick_matrix_measures_every_workload() {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("quick");
    let _ = fs::remove_dir_all(&out);
    let output = Command::new(env!("CARGO_BIN_EXE_peername-bench"))
        .args(["matrix", "--quick", "--subject", "direct", "--out"])
        .arg(&out)
        .output()
        .unwrap();
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
        "pingpong,echoes/s",
        "bulk-1,MB/s",
        "bulk-4,MB/s",
        "churn,connections/s",
        "idle,",
    ] {
        let row = format!("1,direct,{row}");
        let line = text.lines().find(|line| line.starts_with(&row));
        let value = line.and_then(|line| line.rsplit(',').next()?.parse::<f64>().ok());
        assert!(
            value.is_some_and(|value| value > 0.0),
            "no figure for {row} in:\n{text}"
        );
    }
}
