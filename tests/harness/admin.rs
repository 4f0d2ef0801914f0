//! Requests to the admin endpoint, by curl.

use std::process::Command;

use serde_json::Value;

use crate::harness::lab::{Host, stdout_text, wait_for, wait_until};

/// The option that binds the admin endpoint to the address that [`get`] requests.
pub(crate) const ADMIN: &str = "--admin=127.0.0.1:9300";

/// Requests a path; returns the body with the status code appended.
pub(crate) fn get(host: &Host, args: &[&str], path: &str) -> String {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "-w", "%{http_code}"]);
    command
        .args(args)
        .arg(format!("http://127.0.0.1:9300{path}"));
    stdout_text(&host.output(&mut command, ""))
}

/// Waits until the answer to a request for this path is this body with its status code, as of [`get`].
pub(crate) fn wait_answer(host: &Host, path: &str, answer: &str) {
    wait_until(&format!("{path}: {answer}"), || {
        get(host, &[], path) == answer
    });
}

/// The number of connections that the process may have now.
#[track_caller]
pub(crate) fn read_limit(host: &Host) -> usize {
    let metrics = get(host, &[], "/metrics");
    let limit = metrics
        .lines()
        .find_map(|line| line.strip_prefix("peername_connections_limit "));
    limit
        .and_then(|limit| limit.parse().ok())
        .expect("the limit")
}

/// Requests a listing (JSON lines), and returns its objects.
#[track_caller]
pub(crate) fn list(host: &Host, args: &[&str], path: &str) -> Vec<Value> {
    let response = get(host, args, path);
    let body = response
        .strip_suffix("200")
        .unwrap_or_else(|| panic!("{path}: {response}"));
    body.lines()
        .map(|line| serde_json::from_str(line).expect("one JSON object a line"))
        .collect()
}

/// Waits until a listing has at least one object and `is_wanted` accepts every object; returns them.
#[track_caller]
pub(crate) fn wait_listed(
    host: &Host,
    args: &[&str],
    path: &str,
    is_wanted: impl Fn(&Value) -> bool,
) -> Vec<Value> {
    let mut last = Vec::new();
    wait_for(path, || {
        last = list(host, args, path);
        (!last.is_empty() && last.iter().all(&is_wanted)).then(|| last.clone())
    })
}

/// Waits until `/metrics` has this line.
#[track_caller]
pub(crate) fn wait_metric(host: &Host, args: &[&str], line: &str) {
    let mut last = String::new();
    wait_until(line, || {
        last = get(host, args, "/metrics");
        last.lines().any(|found| found == line)
    });
}
