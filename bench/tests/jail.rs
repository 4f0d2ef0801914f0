//! A quick run of the comparison of jails, with the contestants that are built.
//!
//! It needs root or user namespaces, as the benchmark does. On a machine that has neither it fails: it must not pass without
//! a measurement.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn every_workload_is_measured() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jail");
    let _ = fs::remove_dir_all(&out);
    // In a workspace build, peername's binary is in the same directory.
    let peername = Path::new(PROGRAM).with_file_name("peername");
    let output = Command::new(PROGRAM)
        .args(["jail", "--quick", "--out"])
        .args([&out, Path::new("--peername"), &peername])
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");

    let csv = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "csv"));
    let text = fs::read_to_string(csv.expect("no raw figures")).unwrap();
    let mut rows = vec![
        "direct,start,ms",
        "direct,start,CPU ms",
        "direct,new-connections,requests/s",
        "direct,keep-alive,requests/s",
    ];
    if !stdout.contains("skipped peername") {
        rows.extend([
            "peername,start,CPU ms",
            "peername,new-connections,CPU s/1000",
            "peername,keep-alive,CPU s/1000",
            "peername,memory,PSS KiB at start",
            "peername,memory,anonymous KiB after",
        ]);
    }
    for row in rows {
        let row = format!("1,1,{row},");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(&row)?.split(',').next());
        let value: f64 = value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no figure for {row} in:\n{text}"));
        assert!(value > 0.0, "{row}{value}");
    }
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_peername-bench");
