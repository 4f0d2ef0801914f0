//! What the agent needs of the kernel.

use crate::finding::Finding;
use crate::host::{check_kernel, read_number};

/// Checks for SECCOMP_ADDFD_FLAG_SEND, by which a container gets an accepted connection.
pub fn version() -> Finding {
    check_kernel(OLDEST_KERNEL, |release| {
        Finding::fail(
            "kernel",
            format!(
                "Linux {release}: has no SECCOMP_ADDFD_FLAG_SEND, so no connection can be handed to a container"
            ),
            "Linux 5.14 or later; without, `peername proxy` beside the server (docs/kubernetes.md#sidecar)",
        )
    })
}

/// Checks Yama, which can forbid ptrace(2) even to root. The agent needs the permission of ptrace(2) to read and write the
/// arguments of system calls.
pub fn ptrace_scope() -> Finding {
    match read_number("/proc/sys/kernel/yama/ptrace_scope") {
        Some(3) => Finding::fail(
            PTRACE_SCOPE,
            "3: no process may copy a descriptor of another one, so accept(2) of the containers fails",
            "set 2 or less in /etc/sysctl.d and restart this host: the kernel does not lower it before",
        ),
        Some(scope @ (1 | 2)) => Finding::ok(
            PTRACE_SCOPE,
            format!(
                "{scope}: an agent of root may trace containers, one of an ordinary user may not"
            ),
        ),
        Some(scope) => Finding::ok(PTRACE_SCOPE, scope.to_string()),
        None => Finding::ok(PTRACE_SCOPE, "not set"),
    }
}

const PTRACE_SCOPE: &str = "kernel.yama.ptrace_scope";
/// The first kernel with SECCOMP_ADDFD_FLAG_SEND.
const OLDEST_KERNEL: (u32, u32) = (5, 14);
