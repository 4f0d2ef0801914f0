//! What confines a command on this host, or a process that runs.

use std::fs;

use peername_daemon::process::confinement::SCOPES_SINCE;
use peername_daemon::value;
use peername_daemon::value::text::join;
use peername_server::confinement::{Needs, is_seccomp_supported};
use peername_sys::fs::text_file;
use peername_sys::process::caps::CapabilitySet;
use peername_sys::process::confine::files::supported_version;

use crate::finding::Finding;
use crate::host::read_text;

/// What confines commands on this host. The files of `proxy` are those that this process has opened, so its configuration file
/// has to be read before.
pub fn host_findings(intercept: &Needs) -> Vec<Finding> {
    let proxy = Needs {
        files: text_file::opened(),
        resolves_names: value::has_resolved_names(),
        ..Needs::default()
    };
    vec![
        landlock(),
        seccomp(),
        apparmor(),
        swap(),
        files("files of proxy", &proxy),
        files("files of intercept", intercept),
    ]
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
    if is_seccomp_supported() {
        return Finding::ok(SECCOMP, "available");
    }
    Finding::warn(
        SECCOMP,
        "not available, so that a process keeps all system calls",
        "allow seccomp(2) in the sandbox that this runs in, or use a kernel with CONFIG_SECCOMP_FILTER",
    )
}

/// AppArmor only adds to Landlock and seccomp, so its absence is no problem.
fn apparmor() -> Finding {
    if is_apparmor_enabled() {
        Finding::ok(APPARMOR, "enabled in this kernel")
    } else {
        Finding::ok(APPARMOR, "not available: not enabled in this kernel")
    }
}

pub(crate) fn is_apparmor_enabled() -> bool {
    read_text("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y")
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
    let files = needs.allowed_files();
    let readable = files
        .read
        .iter()
        .filter(|path| path.exists())
        .map(|path| path.display());
    Finding::ok(check, format!("may be read: {}", join(readable)))
}

/// What confines a process.
pub fn process_findings(pid: u32) -> Vec<Finding> {
    let threads = match thread_statuses(pid) {
        Ok(threads) => threads,
        Err(error) => {
            let seen = format!("/proc/{pid}/task: {error}");
            return vec![Finding::fail("process", seen, "name one that runs")];
        }
    };
    if let Some(helper) = describe_helper(pid) {
        return vec![
            Finding::ok("process", helper),
            Finding::ok(CAPABILITIES, names(effective_capabilities(&threads))),
            Finding::ok(APPARMOR, apparmor_label(pid)),
        ];
    }
    if let Some(other) = other_program(pid) {
        return vec![other];
    }
    let (filtered, all) = (count_with(&threads, "Seccomp", "2"), threads.len());
    let seccomp = if filtered == all {
        Finding::ok(SECCOMP, "a filter is in force in every thread")
    } else {
        Finding::fail(
            SECCOMP,
            format!("a filter is in force in {filtered} of {all} threads"),
            "start it without --no-sandbox; its log says if the kernel lacks seccomp(2)",
        )
    };
    let no_new_privs = if count_with(&threads, "NoNewPrivs", "1") == all {
        Finding::ok("no_new_privs", "set")
    } else {
        Finding::fail("no_new_privs", "not set in every thread", "restart it")
    };
    vec![
        seccomp,
        no_new_privs,
        capabilities(&threads),
        Finding::ok(APPARMOR, apparmor_label(pid)),
        Finding::ok(
            LANDLOCK,
            "the kernel does not report it for another process; with `-v` the log does",
        ),
    ]
}

/// Describes a process of peername that serves no connections and is not confined, by design (docs/confinement.md); `None` for
/// other processes.
fn describe_helper(pid: u32) -> Option<String> {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let command_line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let description = if command_line.starts_with(b"peername\0routes\0keep\0") {
        KEEPER
    } else {
        HELPERS
            .iter()
            .find(|(thread, _)| *thread == comm.trim_end())?
            .1
    };
    Some(format!(
        "{description}; it is not confined, by design (docs/confinement.md): ask about the process that serves"
    ))
}

/// The finding about a process that does not, or perhaps does not, execute peername; `None` if the process executes peername.
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
pub(crate) fn is_peername(pid: u32) -> Option<bool> {
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
    // Without AppArmor `current` has the label of another security module.
    if !is_apparmor_enabled() {
        return "not available".to_owned();
    }
    ["apparmor/current", "current"]
        .into_iter()
        .find_map(|file| fs::read_to_string(format!("/proc/{pid}/attr/{file}")).ok())
        .map_or_else(
            || "not available".to_owned(),
            |label| label.trim_end().to_owned(),
        )
}

/// The status of each thread that still runs.
fn thread_statuses(pid: u32) -> std::io::Result<Vec<String>> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("status")).ok())
        .collect())
}

/// The number of threads whose status has this value.
fn count_with(threads: &[String], name: &str, value: &str) -> usize {
    threads
        .iter()
        .filter(|status| field(status, name) == value)
        .count()
}

fn field<'s>(status: &'s str, name: &str) -> &'s str {
    status
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| *key == name)
        .map_or("", |(_, value)| value.trim())
}

fn capabilities(threads: &[String]) -> Finding {
    let held = effective_capabilities(threads);
    let needed = CapabilitySet::NET_RAW | CapabilitySet::NET_BIND_SERVICE;
    if needed.contains(held) {
        return Finding::ok(CAPABILITIES, names(held));
    }
    Finding::warn(
        CAPABILITIES,
        names(held),
        "only --mark before Linux 5.17 needs more than CAP_NET_RAW and CAP_NET_BIND_SERVICE",
    )
}

/// The effective capabilities of all threads together. A field that can't be parsed counts as all capabilities.
fn effective_capabilities(threads: &[String]) -> CapabilitySet {
    threads
        .iter()
        .map(|status| u64::from_str_radix(field(status, "CapEff"), 16).unwrap_or(u64::MAX))
        .map(CapabilitySet::from_bits_retain)
        .collect()
}

fn names(capabilities: CapabilitySet) -> String {
    if capabilities.is_empty() {
        return "none".to_owned();
    }
    join(
        capabilities
            .iter_names()
            .map(|(name, _)| format!("CAP_{name}")),
    )
}

/// The thread names of the helper processes, with their descriptions. The process of `exec --admin` is not among them: it is
/// confined.
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
/// The advice for a process id that is not one of peername's.
pub const LIST_PROCESSES: &str = "`pgrep -a peername` lists peername's processes";
const KEEPER: &str = "the keeper of `--setup-routes`, which removes the rules at the end";
const LANDLOCK: &str = "Landlock";
const APPARMOR: &str = "AppArmor";
const SECCOMP: &str = "seccomp";
const SWAP: &str = "swap";
const CAPABILITIES: &str = "capabilities";
