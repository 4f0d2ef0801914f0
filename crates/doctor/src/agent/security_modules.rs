//! AppArmor and SELinux, as far as they can be read: both can deny what the agent does, and log it elsewhere.

use std::fs;

use crate::confinement::is_apparmor_enabled;
use crate::finding::Finding;
use crate::host::read_number;

/// The findings, with the process id of the agent where it is known.
pub fn findings(agent: Option<u32>) -> Vec<Finding> {
    vec![apparmor(agent), selinux(agent)]
}

/// The profile of a container lets an unconfined process trace the container, but the profile of the agent may lack ptrace(2).
fn apparmor(agent: Option<u32>) -> Finding {
    if !is_apparmor_enabled() {
        return Finding::ok(APPARMOR, "not enabled in this kernel");
    }
    match label(agent, "attr/apparmor/current").or_else(|| label(agent, "attr/current")) {
        Some(profile) if profile.ends_with("(enforce)") => Finding::warn(
            APPARMOR,
            format!(
                "the agent is confined by {profile}, which must let it trace the containers (ptrace)"
            ),
            "if the container below fails: `journalctl -k --grep 'apparmor=\"DENIED\"'` names what is missing",
        ),
        Some(profile) => Finding::ok(APPARMOR, format!("the agent is {profile}")),
        None => Finding::ok(APPARMOR, "enabled; no agent whose profile could be read"),
    }
}

/// Warns wherever SELinux is enforcing: without its tools, the rules of the loaded policy can't be queried.
fn selinux(agent: Option<u32>) -> Finding {
    match read_number("/sys/fs/selinux/enforce") {
        None => Finding::ok(SELINUX, "not enabled in this kernel"),
        Some(0) => Finding::ok(SELINUX, "permissive"),
        Some(_) => Finding::warn(
            SELINUX,
            format!(
                "enforcing, and the agent's label is {}: the agent must be allowed to trace the containers (ptrace), and the \
                 containers to use its descriptors (fd use) and socket (connectto)",
                label(agent, "attr/current").unwrap_or_else(|| "not known".to_owned())
            ),
            "if a container can't start or accept: `ausearch -m avc -ts recent` names what is denied",
        ),
    }
}

/// A security label of a process, from a file of its directory in /proc.
fn label(process: Option<u32>, file: &str) -> Option<String> {
    let label = fs::read_to_string(format!("/proc/{}/{file}", process?)).ok()?;
    let label = label.trim_end_matches(['\0', '\n']);
    (!label.is_empty()).then(|| label.to_owned())
}

const APPARMOR: &str = "AppArmor";
const SELINUX: &str = "SELinux";
