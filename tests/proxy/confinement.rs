//! Confinement after the start, as /proc and `doctor` report it, and how it restricts a reload.

mod apparmor;
mod capabilities;
mod lingering_sockets;

use std::fs;

use peername_sys::process::pidfd::descendants;

use crate::harness::addr::{LISTEN_V4, TARGET_V4};
use crate::harness::backend::Backend;
use crate::harness::lab::{Lab, Process, Scratch, assert_contains, stdout_text, wait_for};
use crate::harness::peername::{AS_NOBODY, Peername, copy_executable, words};
use crate::harness::rig::exec_notify::NotifyRig;
use crate::harness::rig::proxy::{ProxyRig, connect_fresh_client};

#[test]
fn every_thread_of_proxy_and_forward_is_confined() {
    let rig = ProxyRig::new(&[]);
    rig.proxy.wait_started();
    assert_seccomp(&rig.proxy, SANDBOX_FILTERS);
    for protocol in ["--protocol=tcp", "--protocol=udp"] {
        let lab = Lab::new();
        let addresses = ["--listen=10.81.0.1:8443", "--to=127.0.0.1:9000"];
        let args = [&["forward", protocol, "--log-format=json"], &addresses[..]].concat();
        assert_seccomp(
            &Peername::start_listening(&lab.server, &args),
            SANDBOX_FILTERS,
        );
    }
}

#[test]
fn no_sandbox_confines_nothing_and_is_logged() {
    for (option, key) in [("--no-sandbox", ""), ("-v", "no-sandbox = true\n")] {
        let rig = ConfigFileRig::new(key, &[option], "127.0.0.1");
        rig.proxy.wait_logged("this process is not confined");
        assert_seccomp(&rig.proxy, NO_FILTERS);
        let other_directory = Scratch::new();
        let list = other_directory.write("trusted", "10.81.0.0/24\n");
        rig.reload(&list, "127.0.0.1", "\"reloaded\"");
    }
}

/// A reload reads a list that an editor has replaced, and a new file in the same directory. It refuses a file elsewhere.
#[test]
fn reload_reads_files_of_the_same_directory_only() {
    let rig = ConfigFileRig::new("", &[], "127.0.0.1");
    let list = rig.scratch.path_text("trusted");
    let draft = rig.scratch.write("draft", "10.81.0.0/24\n192.0.2.0/24\n");
    rig.lab.server.run("mv", &[&draft, &list]);
    rig.reload(&list, "127.0.0.1", "\"reloaded\"");
    let sibling = rig.scratch.write("sibling", "10.81.0.0/24\n");
    rig.reload(&sibling, "127.0.0.1", "\"reloaded\"");
    let other_directory = Scratch::new();
    let outside = other_directory.write("trusted", "10.81.0.0/24\n");
    let refused = rig.reload(&outside, "127.0.0.1", "reload refused");
    let why = format!(
        "{outside}: outside of the directories that this process may read since its start: restart it"
    );
    assert!(refused.contains(&why), "{refused}");
    rig.assert_serves();
    rig.reload(&sibling, "127.0.0.1", "\"reloaded\"");
}

/// The user database may be a service (nss-systemd), and the process is killed for its socket. Without HOME, std's home_dir()
/// asks it.
#[test]
fn reload_does_not_look_up_the_user() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    // Without HOME, `~` is a directory beside the file.
    fs::create_dir(scratch.path("~")).expect("mkdir(2)");
    scratch.write("~/trusted", "10.81.0.0/24\n");
    let file = scratch.write("proxy.toml", &config("", "~/trusted", "127.0.0.1"));
    let trace = scratch.path_text("trace");
    let through = format!("env -u HOME strace -f -e trace=openat -o {trace}");
    let args = ["proxy", "--log-format=json", "--config", &file];
    let proxy = Peername::start_through(&lab.server, &words(&through), &args, &[LISTEN_V4]);
    let traced = descendants(proxy.pid())[0].to_string();
    lab.server.run("kill", &["-HUP", &traced]);
    proxy.wait_logged("\"reloaded\"");
    let opened = scratch.read("trace");
    assert!(
        opened.contains("/proxy.toml") && !opened.contains("/etc/passwd"),
        "{opened}"
    );
}

#[test]
fn reload_resolves_names_only_if_the_start_did() {
    let rig = ConfigFileRig::new("", &[], "127.0.0.1");
    let list = rig.scratch.path_text("trusted");
    let refused = rig.reload(&list, "localhost", "reload refused");
    assert_contains(&refused, &["can't resolve names"]);
    rig.assert_serves();

    let rig = ConfigFileRig::new("", &[], "localhost");
    let list = rig.scratch.path_text("trusted");
    rig.reload(&list, "localhost", "\"reloaded\"");
    // No name server is reachable, so this name fails to resolve, but the sandbox does not forbid the attempt.
    let refused = rig.reload(&list, "backend.invalid", "reload refused");
    assert!(!refused.contains("can't resolve names"), "{refused}");
    rig.assert_serves();
}

#[test]
fn doctor_reports_what_confines_a_process() {
    let doctor = |rig: &ConfigFileRig, args: &[&str]| {
        let args = [&["doctor", "--confinement"], args].concat();
        let output = Peername::run(&rig.lab.server, &args);
        let text = stdout_text(&output);
        (output.status.code(), text)
    };
    let confined = ConfigFileRig::new("", &[], "127.0.0.1");
    let pid = confined.proxy.pid().to_string();
    let (code, text) = doctor(&confined, &["--pid", &pid]);
    assert_eq!(code, Some(0), "{text}");
    assert_contains(
        &text,
        &[
            "ok    seccomp: a filter is in force in every thread",
            "ok    capabilities: CAP_NET_BIND_SERVICE CAP_NET_RAW",
        ],
    );
    let unconfined = ConfigFileRig::new("", &["--no-sandbox"], "127.0.0.1");
    let pid = unconfined.proxy.pid().to_string();
    let (code, text) = doctor(&unconfined, &["--pid", &pid]);
    assert_eq!(code, Some(3), "{text}");
    assert_contains(&text, &["FAIL  seccomp: a filter is in force in 0 of "]);
    let this_test = std::process::id().to_string();
    let (code, text) = doctor(&unconfined, &["--pid", &this_test]);
    assert_eq!(code, Some(3), "{text}");
    assert_contains(&text, &["not peername; `pgrep -a peername`"]);
    assert!(!text.contains("a filter"), "{text}");
    // The executable of another user's process can't be read.
    let host = &confined.lab.server;
    let copy = copy_executable(host, &confined.scratch);
    let as_nobody = [AS_NOBODY, &[copy.as_str()]].concat();
    let args = ["doctor", "--confinement", "--pid", &this_test];
    let text = stdout_text(&Peername::run_with_input(host, &as_nobody, &args, ""));
    assert_contains(&text, &["warn  process: not known whether process"]);

    // Without `--pid`, `doctor` lists the directories that a proxy with this configuration may read after its start.
    let file = confined.scratch.path_text("proxy.toml");
    let (code, text) = doctor(&confined, &["--config", &file]);
    assert_eq!(code, Some(0), "{text}");
    let dir = confined.scratch.path_text("");
    let proxy = text.lines().find(|line| line.contains("files of proxy"));
    assert!(
        proxy.is_some_and(|line| line.contains(dir.trim_end_matches('/'))),
        "{text}"
    );
}

/// The sandbox does not cause the error about a target that can't be parsed, so the error does not advise `--no-sandbox`.
#[test]
fn confined_reload_reports_an_address_that_can_not_be_parsed() {
    let rig = ConfigFileRig::new("", &[], "127.0.0.1");
    let list = rig.scratch.path_text("trusted");
    for (target, why) in [
        ("127.0.0.1:99999", "invalid port value"),
        ("127.0.0.1", "the port is missing"),
        ("127.0.0.300:9000", "invalid socket address"),
    ] {
        // `" #` makes the rest of the line in the configuration file a comment.
        let refused = rig.reload(&list, &format!("{target}\" #"), "reload refused");
        assert!(refused.contains(why), "{refused}");
        assert!(!refused.contains("--no-sandbox"), "{refused}");
    }
    rig.assert_serves();
}

/// Helper processes are not confined, or not in the way of one that serves. `doctor` explains that and reports no failure.
#[test]
fn doctor_explains_processes_that_are_not_confined_by_design() {
    let rig = ConfigFileRig::new("", &[], "127.0.0.1");
    let launcher = wait_for("the launcher", || {
        descendants(rig.proxy.pid()).into_iter().find(|pid| {
            let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
            comm.is_ok_and(|comm| comm.trim_end() == "launcher")
        })
    });
    let exec = NotifyRig::start_variant("edge");
    for (pid, explanation) in [
        (launcher.to_string(), "the launcher of upgrades"),
        (
            exec.supervisor_pid().as_raw_nonzero().to_string(),
            "the supervisor of `exec`",
        ),
        (
            exec.monitor_pid().as_raw_nonzero().to_string(),
            "the monitor of `exec`",
        ),
    ] {
        let args = ["doctor", "--confinement", "--pid", &pid];
        let output = Peername::run(&rig.lab.server, &args);
        let text = stdout_text(&output);
        assert_eq!(output.status.code(), Some(0), "{text}");
        assert!(text.contains(explanation), "{text}");
        assert!(!text.contains("--no-sandbox"), "{text}");
    }
}

/// A proxy with a configuration file and a trust list in one directory, and one backend.
struct ConfigFileRig {
    proxy: Peername,
    backend: Backend,
    scratch: Scratch,
    lab: Lab,
    /// Process-wide keys of the configuration file.
    keys: &'static str,
}

impl ConfigFileRig {
    fn new(keys: &'static str, args: &[&str], host: &str) -> Self {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let list = scratch.write("trusted", "10.81.0.0/24\n");
        let file = scratch.write("proxy.toml", &config(keys, &list, host));
        let args = [&["proxy", "--log-format=json", "--config", &file], args].concat();
        let proxy = Peername::start(&lab.server, &args, &[LISTEN_V4]);
        proxy.wait_started();
        Self {
            backend: Backend::listen(&lab.server, TARGET_V4),
            proxy,
            scratch,
            lab,
            keys,
        }
    }

    /// Reloads with this trust list and backend, and returns the next line that contains `says`.
    #[track_caller]
    fn reload(&self, list: &str, host: &str, says: &str) -> String {
        self.scratch
            .write("proxy.toml", &config(self.keys, list, host));
        self.proxy.reload(says)
    }

    #[track_caller]
    fn assert_serves(&self) {
        let _open = connect_fresh_client(&self.lab, LISTEN_V4, &self.backend);
    }
}

fn config(keys: &str, list: &str, host: &str) -> String {
    format!(
        "{keys}[[listen]]\naddress = [\"{LISTEN_V4}\"]\ntarget-v4 = \"{host}:9000\"\ntrust = [\"@{list}\"]\n"
    )
}

/// Asserts that every thread has `filters` seccomp filters more than this test's process, from which it inherits.
#[track_caller]
fn assert_seccomp(process: &Process, filters: u32) {
    let own = fs::read_to_string("/proc/self/status").expect("our own status");
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix(FILTER_COUNT)?.strip_prefix(':'));
    let count = |text: &str| text.trim().parse::<u32>().expect("a number");
    let inherited = count(own.expect("Linux 5.9"));
    let threads = process.thread_status_fields(FILTER_COUNT);
    assert!(!threads.is_empty());
    for (thread, value) in threads {
        assert_eq!(count(&value), inherited + filters, "{thread}");
    }
}

/// A field of /proc/PID/status (proc_pid_status(5)).
const FILTER_COUNT: &str = "Seccomp_filters";
/// The list of allowed calls, and that of calls that are reported as absent.
const SANDBOX_FILTERS: u32 = 2;
const NO_FILTERS: u32 = 0;
