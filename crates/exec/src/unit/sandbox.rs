//! The settings that a unit's sandbox lacks for `peername exec` (systemd.exec(5)).

use std::path::Path;

use super::service_unit::{ServiceUnit, split_words};

/// A setting of the sandbox that adds to the unit's own.
#[derive(Debug)]
pub(super) struct SandboxSetting {
    pub(super) key: &'static str,
    pub(super) value: String,
    pub(super) reason: &'static str,
}

/// The settings that the unit's sandbox lacks. `executed` are the files that are executed or loaded beside the server.
pub(super) fn missing_settings(unit: &ServiceUnit, executed: &[&Path]) -> Vec<SandboxSetting> {
    let mut settings = vec![
        SandboxSetting {
            key: "SystemCallFilter",
            value: denied_calls(unit),
            reason: "The supervisor answers accept(2) and getpeername(2) for processes without the library.",
        },
        SandboxSetting {
            key: "RestrictAddressFamilies",
            value: denied_families(unit),
            reason: "The supervisor finds closed connections by AF_NETLINK, and opens wake-up connections by the others.",
        },
        SandboxSetting {
            key: "ExecPaths",
            value: uncovered_paths(unit, "NoExecPaths", "ExecPaths", executed),
            reason: "The program in front of the server, and the library that is loaded into it.",
        },
        SandboxSetting {
            key: "ReadWritePaths",
            value: uncovered_paths(
                unit,
                "ReadOnlyPaths",
                "ReadWritePaths",
                &[Path::new("/dev/shm")],
            ),
            reason: "The table of clients is a file there.",
        },
    ];
    settings.retain(|setting| !setting.value.is_empty());
    settings
}

/// The system calls that the supervisor makes and the unit's filter denies.
fn denied_calls(unit: &ServiceUnit) -> String {
    let filter = unit.list("SystemCallFilter");
    let capset = has_sys_ptrace(unit).then_some(&CAPSET);
    CALLS
        .iter()
        .chain(capset)
        .filter(|call| !permits(&filter, |word| call.is_named(word)))
        .map(|call| call.name)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether the supervisor starts with CAP_SYS_PTRACE. If so, it drops all other capabilities by capset(2).
fn has_sys_ptrace(unit: &ServiceUnit) -> bool {
    let is_root = matches!(unit.last("User"), None | Some("root" | "0"));
    is_root
        && permits(&unit.list("CapabilityBoundingSet"), |word| {
            word == "CAP_SYS_PTRACE"
        })
}

/// The address families that the supervisor needs and the unit denies. A wake-up connection has the family of its listener, or is
/// IPv4 to a dual-stack one. If the unit permits an internet family, that is usually the listener's; docs/exec.md has the
/// exception, an IPv6-only socket of a socket unit. If it permits none, systemd has opened the listener, and both families are
/// needed.
fn denied_families(unit: &ServiceUnit) -> String {
    let list = unit.list("RestrictAddressFamilies");
    let is_permitted = |family: &str| permits(&list, |word| word == family);
    let mut denied = Vec::new();
    if !INTERNET_FAMILIES.iter().any(|family| is_permitted(family)) {
        denied.extend(INTERNET_FAMILIES);
    }
    if !is_permitted("AF_NETLINK") {
        denied.push("AF_NETLINK");
    }
    denied.join(" ")
}

/// Whether a list permits something. A value with `~` lists what is denied, any other value what is allowed. The last value
/// that names the thing decides. If no value names it, it is permitted if the first value is one with `~` (systemd.exec(5),
/// SystemCallFilter=).
fn permits(list: &[&str], is_named: impl Fn(&str) -> bool) -> bool {
    let Some(first) = list.first() else {
        return true;
    };
    let mut permits = first.starts_with('~');
    for value in list {
        let mut names = split_words(value.trim_start_matches('~'))
            // An error number may follow a call.
            .map(|name| name.split(':').next().unwrap_or_default());
        if names.any(&is_named) {
            permits = !value.starts_with('~');
        }
    }
    permits
}

/// Those of `paths` that the setting `restricting` of the unit covers, and that no more specific path of `permitting` covers.
fn uncovered_paths(
    unit: &ServiceUnit,
    restricting: &str,
    permitting: &str,
    paths: &[&Path],
) -> String {
    let (restricted, permitted) = (unit.list(restricting), unit.list(permitting));
    paths
        .iter()
        .filter(|path| cover_depth(&restricted, path) > cover_depth(&permitted, path))
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The number of components of the longest path in these lists that is `path` or above it; 0 if there is none.
fn cover_depth(lists: &[&str], path: &Path) -> usize {
    lists
        .iter()
        .flat_map(|list| split_words(list))
        .map(|word| Path::new(word.trim_start_matches(['-', '+'])))
        .filter(|cover| path.starts_with(cover))
        .map(|cover| cover.components().count())
        .max()
        .unwrap_or(0)
}

/// A system call of the supervisor, and the groups that it belongs to beside `@known` (systemd-analyze syscall-filter) in all
/// versions of systemd.
struct SystemCall {
    name: &'static str,
    groups: &'static [&'static str],
}

impl SystemCall {
    const fn new(name: &'static str, groups: &'static [&'static str]) -> Self {
        Self { name, groups }
    }

    fn is_named(&self, word: &str) -> bool {
        word == self.name || word == "@known" || self.groups.contains(&word)
    }
}

/// The system calls that `peername_exec::interfaces` tries, and madvise(2): the C library calls it when a thread exits, and where
/// the filter has no error number, that ends the process.
const CALLS: [SystemCall; 9] = [
    SystemCall::new("seccomp", &["@sandbox"]),
    SystemCall::new("pidfd_open", &["@process", "@system-service"]),
    SystemCall::new("pidfd_getfd", &["@debug"]),
    SystemCall::new("pidfd_send_signal", &["@process", "@system-service"]),
    SystemCall::new("process_vm_readv", &["@ipc", "@system-service"]),
    SystemCall::new("process_vm_writev", &["@ipc", "@system-service"]),
    SystemCall::new("memfd_create", &["@ipc", "@system-service"]),
    SystemCall::new("flock", &["@system-service"]),
    SystemCall::new("madvise", &["@system-service"]),
];
const CAPSET: SystemCall = SystemCall::new("capset", &["@privileged", "@system-service"]);
const INTERNET_FAMILIES: [&str; 2] = ["AF_INET", "AF_INET6"];
