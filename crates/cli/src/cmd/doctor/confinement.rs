//! `peername doctor confinement`: what confines a command on this host, or a process that runs.

use std::fs;
use std::path::PathBuf;

use peername_daemon::process::confinement::SCOPES_SINCE;
use peername_daemon::value;
use peername_daemon::value::text::join;
use peername_server::confinement::{Needs, is_seccomp_supported};
use peername_sys::fs::text_file;
use peername_sys::process::caps::CapabilitySet;
use peername_sys::process::confine::files::supported_version;

use super::finding::Finding;
use super::intercept;

/// Options of `peername doctor confinement`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor confinement --pid 1234")]
pub(super) struct Args {
    /// Report what confines this process
    #[arg(long, value_name = "PID", conflicts_with = "config")]
    pid: Option<u32>,
    /// Report the files that `proxy` may use with this configuration file
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

impl Args {
    /// All findings. The configuration file has been read by now.
    pub(super) fn findings(&self) -> Vec<Finding> {
        match self.pid {
            Some(pid) => of_process(pid),
            None => of_host(),
        }
    }
}

fn of_host() -> Vec<Finding> {
    let proxy = Needs {
        files: text_file::opened(),
        names: value::are_names_resolved(),
        ..Needs::default()
    };
    let mut findings = vec![
        landlock(),
        seccomp(),
        apparmor(),
        swap(),
        files("files of proxy", &proxy),
    ];
    findings.extend(intercept::needs().map(|needs| files("files of intercept", &needs)));
    findings
}

fn landlock() -> Finding {
    match supported_version() {
        None => Finding::warn(
            LANDLOCK,
            "not available, so that a process keeps all files that its user may open",
            "use Linux 5.13 or later, with landlock in `lsm=` of the kernel's command line",
        ),
        Some(version) if version < SCOPES_SINCE => Finding::ok(
            LANDLOCK,
            format!("version {version}; signals to other processes are blocked since Linux 6.12"),
        ),
        Some(version) => Finding::ok(LANDLOCK, format!("version {version}")),
    }
}

fn seccomp() -> Finding {
    match is_seccomp_supported() {
        true => Finding::ok(SECCOMP, "available"),
        false => Finding::warn(
            SECCOMP,
            "not available, so that a process keeps all system calls",
            "allow seccomp(2) in the sandbox that this runs in, or use a kernel with CONFIG_SECCOMP_FILTER",
        ),
    }
}

/// AppArmor is an addition, so that its absence is no problem.
fn apparmor() -> Finding {
    match fs::read_to_string("/sys/module/apparmor/parameters/enabled").as_deref() {
        Ok("Y\n") => Finding::ok(APPARMOR, "enabled in this kernel"),
        _ => Finding::ok(APPARMOR, "not available: not enabled in this kernel"),
    }
}

fn swap() -> Finding {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    // The first line is a heading.
    match swaps.lines().nth(1) {
        None => Finding::ok(SWAP, "not used"),
        Some(_) => Finding::warn(
            SWAP,
            "used, so that private keys of `peername intercept` may be written to it",
            "add MemorySwapMax=0 to its unit",
        ),
    }
}

fn files(check: &'static str, needs: &Needs) -> Finding {
    let read = needs.allowed_files().read.into_iter();
    let existing = read.filter(|path| path.exists());
    let paths: Vec<_> = existing.map(|path| path.display().to_string()).collect();
    Finding::ok(check, format!("may be read: {}", join(paths)))
}

fn of_process(pid: u32) -> Vec<Finding> {
    let threads = match thread_statuses(pid) {
        Ok(threads) => threads,
        Err(error) => {
            let seen = format!("/proc/{pid}/task: {error}");
            return vec![Finding::fail("process", seen, "name one that runs")];
        }
    };
    if let Some(helper) = helper(pid) {
        return vec![
            Finding::ok("process", helper),
            Finding::ok(CAPABILITIES, held_names(held(&threads))),
            Finding::ok(APPARMOR, apparmor_label(pid)),
        ];
    }
    if let Some(other) = other_program(pid) {
        return vec![other];
    }
    let all_have = |name, value| threads.iter().all(|status| field(status, name) == value);
    vec![
        match all_have("Seccomp", "2") {
            true => Finding::ok(SECCOMP, "a filter is in force in every thread"),
            false => Finding::fail(
                SECCOMP,
                "no filter is in force",
                "start it without --no-sandbox; its log says if the kernel lacks seccomp(2)",
            ),
        },
        match all_have("NoNewPrivs", "1") {
            true => Finding::ok("no_new_privs", "set"),
            false => Finding::fail("no_new_privs", "not set", "restart it"),
        },
        capabilities(&threads),
        Finding::ok(APPARMOR, apparmor_label(pid)),
        Finding::ok(
            LANDLOCK,
            "the kernel does not report it for another process; with `-v` the log does",
        ),
    ]
}

/// What a process of peername is that is not confined as those that serve, by design: docs/confinement.md lists them.
fn helper(pid: u32) -> Option<String> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let what = match comm.trim_end() {
        _ if command_line.starts_with(b"peername\0routes\0keep\0") => KEEPER,
        name => HELPERS.iter().find(|(known, _)| *known == name)?.1,
    };
    Some(format!(
        "{what}; it is not confined, by design (docs/confinement.md): ask about the process that serves"
    ))
}

/// The finding about a process that does not execute peername, or of which that is not known.
fn other_program(pid: u32) -> Option<Finding> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let name = comm.trim_end().escape_debug();
    match is_peername(pid) {
        Some(true) => None,
        Some(false) => Some(Finding::fail(
            "process",
            format!("process {pid} is {name}, not peername"),
            LIST_PROCESSES,
        )),
        None => Some(Finding::warn(
            "process",
            format!(
                "not known whether process {pid}, {name}, is peername: its executable can't be read"
            ),
            "run as root, or as its user",
        )),
    }
}

/// Whether a process executes peername; `None` if that is not known: the file of another user's process can't be read, and a process
/// that was started by a link to peername has the link's name.
pub(super) fn is_peername(pid: u32) -> Option<bool> {
    let Ok(file) = fs::read_link(format!("/proc/{pid}/exe")) else {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        return comm.starts_with("peername").then_some(true);
    };
    let has_its_name = file
        .file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"peername"));
    Some(has_its_name || fs::read_link("/proc/self/exe").is_ok_and(|own| own == file))
}

/// The profile of a process, such as `peername-service (enforce)`.
fn apparmor_label(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/attr/apparmor/current")) {
        Ok(label) => label.trim_end().to_owned(),
        Err(_) => "not available".to_owned(),
    }
}

/// The status of each thread that still runs.
fn thread_statuses(pid: u32) -> std::io::Result<Vec<String>> {
    let tasks = fs::read_dir(PathBuf::from(format!("/proc/{pid}/task")))?;
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    Ok(tasks.flatten().filter_map(status).collect())
}

/// A field of /proc/PID/status (proc_pid_status(5)); empty if it is missing.
fn field<'s>(status: &'s str, name: &str) -> &'s str {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    let mut found = lines.filter(|(key, _)| *key == name);
    found.next().map_or("", |(_, value)| value.trim())
}

fn capabilities(threads: &[String]) -> Finding {
    let held = held(threads);
    let names = held_names(held);
    let needed = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    match needed.contains(held) {
        true => Finding::ok(CAPABILITIES, names),
        false => Finding::warn(
            CAPABILITIES,
            names,
            "only --mark before Linux 5.17 needs more than CAP_NET_RAW and CAP_NET_BIND_SERVICE",
        ),
    }
}

/// The effective capabilities of any thread.
fn held(threads: &[String]) -> CapabilitySet {
    let held = threads.iter().map(|status| {
        let bits = u64::from_str_radix(field(status, "CapEff"), 16);
        CapabilitySet::from_bits_retain(bits.unwrap_or(u64::MAX))
    });
    held.fold(CapabilitySet::empty(), |all, one| all | one)
}

fn held_names(held: CapabilitySet) -> String {
    match held.is_empty() {
        true => "none".to_owned(),
        false => join(held.iter_names().map(|(name, _)| format!("CAP_{name}"))),
    }
}

/// The names of threads that [`helper`] explains. The process of `exec --admin` is not among them: it is confined.
const HELPERS: [(&str, &str); 5] = [
    (
        "launcher",
        "the launcher of upgrades, which starts the new binary with the privileges of the start",
    ),
    (
        "peername-notify",
        "the supervisor of `exec`, which starts and traces another program",
    ),
    (
        "peername-guard",
        "the monitor of `exec`, which ends the program if its supervisor is killed",
    ),
    (
        "peername-netns",
        "the supervisor of `exec --mode netns`, which starts the program and the proxy",
    ),
    (
        "peername-jail",
        "the supervisor of `jail`, which waits for the interceptor",
    ),
];
const KEEPER: &str = "the keeper of `--setup-routes`, which removes the rules at the end";
const LIST_PROCESSES: &str = "`pgrep -a peername` lists those of peername";
const LANDLOCK: &str = "Landlock";
const APPARMOR: &str = "AppArmor";
const SECCOMP: &str = "seccomp";
const SWAP: &str = "swap";
const CAPABILITIES: &str = "capabilities";
