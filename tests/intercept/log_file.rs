//! The file of `--log`: rotation, and files that can't be written.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::json;

use crate::harness::lab::{Host, Scratch, assert_count, assert_fields, wait_for, wait_until};
use crate::harness::peername::Peername;
use crate::harness::rig::intercept::{InterceptLab, InterceptRig, wait_request_lines};

/// A rotation moves the file away and sends SIGHUP.
#[test]
fn reload_opens_the_file_of_the_log_again() {
    let lab = InterceptLab::new();
    let log = lab.scratch.path_text("audit.log");
    let rig = lab.start(&["--log", &log]);
    rig.curl(&["http://a.test/echo?one"]);
    wait_request_lines(&log, 1);
    let rotated = format!("{log}.1");
    fs::rename(&log, &rotated).expect("rename(2)");
    rig.proxy.reload("\"reloaded\"");
    rig.proxy.wait_logged("the file of --log was opened again");
    rig.curl(&["http://a.test/echo?two"]);
    let lines = wait_request_lines(&log, 1);
    assert_eq!(lines[0]["decision"], "unchecked", "{lines:?}");
    wait_request_lines(&rotated, 1);
    let admitted = fs::read_to_string(&log).expect("the log");
    assert_count(&admitted, "request admitted", 1);
    assert!(!rig.proxy.log().contains("/echo"), "{}", rig.proxy.log());
    // A removed file is made again by the next line, without a reload.
    fs::remove_file(&log).expect("unlink(2)");
    rig.curl(&["http://a.test/echo?three"]);
    wait_request_lines(&log, 1);
}

/// A directory is no file. In a directory that has replaced the one of the start, the confined process may not write.
#[test]
fn reload_that_can_not_open_the_file_of_the_log_is_refused() {
    let lab = InterceptLab::new();
    let directory = lab.scratch.path_text("log");
    fs::create_dir(&directory).expect("mkdir(2)");
    let log = format!("{directory}/audit.log");
    let rig = lab.start(&["--log", &log]);
    wait_for("the log", || fs::exists(&log).ok().filter(|exists| *exists));
    fs::rename(&log, format!("{log}.1")).expect("rename(2)");
    fs::create_dir(&log).expect("mkdir(2)");
    let refused = rig.proxy.reload("reload refused");
    assert!(refused.contains("Is a directory"), "{refused}");
    fs::rename(&directory, format!("{directory}.1")).expect("rename(2)");
    fs::create_dir(&directory).expect("mkdir(2)");
    let refused = rig.proxy.reload("reload refused");
    assert!(refused.contains("`peername upgrade` it"), "{refused}");
}

#[test]
fn request_is_denied_where_the_log_can_not_be_written() {
    let rig = InterceptRig::new(&["--allow=any", "--log=/dev/full"]);
    let problem = rig.curl_problem(&["http://a.test/echo"]);
    assert_fields(
        &problem,
        json!({"status": 503, "code": "audit_failed", "detail": "the audit log is not writable"}),
    );
    rig.proxy.wait_json("of the warning", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.starts_with("--log can't be written")
    });
    // Lines at the end of requests wait in a buffer for space. Those beyond it are lost.
    rig.try_curl(&["http://a.test/echo?[1-300]"]);
    rig.proxy.wait_logged("lines of the log were lost");
}

/// Few lines fit into the buffer, where they wait for space. At the exit they are lost.
#[test]
fn lines_that_wait_for_space_are_reported_at_once_and_at_the_exit() {
    let mut rig = InterceptRig::new(&["--allow=any", "--log=/dev/full"]);
    rig.curl_problem(&["http://a.test/echo"]);
    rig.proxy
        .wait_logged("lines of the log can't be written yet");
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(5));
    rig.proxy
        .wait_logged("1 lines of the log were lost since the start");
}

#[test]
fn line_that_is_written_in_part_is_reported_at_the_exit() {
    let lab = InterceptLab::new();
    let log = lab.scratch.path_text("audit.log");
    let mut rig = lab.start(&["--log", &log]);
    cut_last_line(&rig, &log);
    rig.proxy.signal(Signal::TERM);
    rig.proxy.wait_success(Duration::from_secs(5));
    rig.proxy
        .wait_logged("1 lines of the log were lost since the start");
}

#[test]
fn line_that_is_written_in_part_is_whole_after_a_rotation() {
    let lab = InterceptLab::new();
    let log = lab.scratch.path_text("audit.log");
    let rig = lab.start(&["--log", &log]);
    cut_last_line(&rig, &log);
    fs::rename(&log, format!("{log}.1")).expect("rename(2)");
    rig.proxy.reload("\"reloaded\"");
    let lines = wait_request_lines(&log, 1);
    assert_eq!(lines[0]["path"], "/echo", "{lines:?}");
    let next = fs::read_to_string(&log).expect("the log");
    assert_count(&next, "request admitted", 0);
}

/// Makes two requests with lines of about the same length. The file gets half of the last line.
fn cut_last_line(rig: &InterceptRig, log: &str) {
    rig.curl(&["http://a.test/echo"]);
    wait_request_lines(log, 1);
    let text = fs::read_to_string(log).expect("the log");
    let last = text.lines().last().expect("the line of the request");
    let limit = (text.len() * 2 - last.len() / 2) as u64;
    limit_file_sizes(rig, limit);
    rig.curl(&["http://a.test/echo"]);
    wait_until("half of the line", || {
        fs::metadata(log).expect("the log").len() == limit
    });
}

/// A limit of file sizes (`ulimit -f`, LimitFSIZE= of a unit) is as a full disk, and ends nothing.
#[test]
fn request_is_denied_where_the_log_has_reached_the_limit_of_file_sizes() {
    let lab = InterceptLab::new();
    let log = lab.scratch.write("audit.log", "a full line\n");
    let rig = lab.start(&["--allow=any", "--log", &log]);
    limit_file_sizes(&rig, 12);
    let problem = rig.curl_problem(&["http://a.test/echo"]);
    assert_fields(&problem, json!({"status": 503, "code": "audit_failed"}));
    rig.proxy.wait_logged("File too large");
}

fn limit_file_sizes(rig: &InterceptRig, bytes: u64) {
    let proxy = Pid::from_raw(rig.proxy.pid().cast_signed());
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    prlimit(proxy, Resource::Fsize, limit).expect("prlimit(2)");
}

/// A pipe whose reader is absent, or slow, would hold up the start and every worker.
#[test]
fn pipe_without_a_reader_is_refused_as_the_log() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let pipe = scratch.path_text("pipe");
    host.run("mkfifo", &[&pipe]);
    let ca = format!("--ca={}", scratch.path_text("ca"));
    Peername::run(&host, &["ca", "init", &ca]);
    let args = ["intercept", "--allow=any", &ca, "--log", &pipe];
    let printed = Peername::run_failing(&host, &args, 2);
    assert!(printed.contains("No such device or address"), "{printed}");
}
