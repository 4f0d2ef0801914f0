//! A quick run of a comparison, and its raw figures.

use std::fs;
use std::path::Path;
use std::process::Command;

/// What a run has printed, and the text of its raw results.
pub(crate) struct QuickRun {
    pub(crate) stdout: String,
    csv: String,
}

impl QuickRun {
    /// Runs a comparison, with results in the empty or missing directory `out`; asserts success.
    pub(crate) fn new(arguments: &[&str], out: &Path) -> Self {
        let program = env!("CARGO_BIN_EXE_peername-bench");
        // In a workspace build, peername's binary is in the same directory.
        let peername = Path::new(program).with_file_name("peername");
        let output = Command::new(program)
            .args(arguments)
            .args([Path::new("--out"), out, Path::new("--peername"), &peername])
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stdout}\n{stderr}");
        let csv = fs::read_dir(out)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.extension().is_some_and(|extension| extension == "csv"));
        let csv = fs::read_to_string(csv.expect("no raw figures")).unwrap();
        Self { stdout, csv }
    }

    /// The figure of `contestant,case,metric` in the first round; asserts that there is one above 0.
    pub(crate) fn figure(&self, row: &str) -> f64 {
        let row = format!("1,1,{row},");
        let value = self
            .csv
            .lines()
            .find_map(|line| line.strip_prefix(&row)?.split(',').next());
        let value: f64 = value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("no figure for {row} in:\n{}", self.csv));
        assert!(value > 0.0, "{row}{value}");
        value
    }
}
