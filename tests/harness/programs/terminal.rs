//! Programs in a terminal.

use std::process::Command;

use serde_json::Value;

use crate::harness::lab::Host;
use crate::harness::peername::BINARY;

/// Runs peername in a terminal on this host, to its end. The steps are `see:TEXT`, which waits until the screen
/// has the text, and `press:KEYS`. Asserts that it exits with success and restores the terminal.
#[track_caller]
pub(crate) fn run_in_terminal(host: &Host, steps: &[&str], args: &[&str]) {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", TERMINAL]);
    command.args(steps).args(["--", BINARY]).args(args);
    let output = host.output(&mut command, "");
    let seen: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(seen["missing"].is_null(), "{seen:#}");
    assert_eq!(
        (&seen["status"], &seen["is_restored"]),
        (&0.into(), &true.into()),
        "{seen:#}"
    );
}

const TERMINAL: &str = include_str!("terminal/terminal.py");
