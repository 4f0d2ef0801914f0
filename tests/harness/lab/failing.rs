//! Programs for which a system call fails, by a seccomp filter.
//!
//! The filters are instructions of classic BPF, as tuples (code, jump if true, jump if false, operand):
//!
//! | code | |
//! |---|---|
//! | 0x20 | loads the 32-bit word at this offset of `seccomp_data`: the call's number is at 0, its arguments at 16, 24, 32 … |
//! | 0x15, 0x35 | tests whether the word is =, or ≥, the operand; skips the tuple's number of instructions for true or false |
//! | 0x06 | returns an action: 0x00050000 and an errno, 0x80000000 to kill the process, 0x7fff0000 to allow the call |

/// The prefix of a command that makes it run with this filter. `calls` are the instructions of one function or constant
/// of this module.
pub(crate) fn failing_calls(calls: &str) -> [&str; 4] {
    ["python3", "-c", FILTER, calls]
}

/// socket(AF_NETLINK) fails with EAFNOSUPPORT: a unit's RestrictAddressFamilies= without AF_NETLINK.
pub(crate) const NO_NETLINK: &str = "(0x20, 0, 0, 0), (0x15, 0, 3, socket), (0x20, 0, 0, 16), \
                                     (0x15, 0, 1, 16), (0x06, 0, 0, 0x00050061)";

/// socket(AF_UNIX) fails with EAFNOSUPPORT: a unit's RestrictAddressFamilies= without AF_UNIX.
pub(crate) const NO_UNIX: &str = "(0x20, 0, 0, 0), (0x15, 0, 3, socket), (0x20, 0, 0, 16), \
                                  (0x15, 0, 1, 1), (0x06, 0, 0, 0x00050061)";

/// This system call fails with EPERM, or kills the process.
pub(crate) fn denied(call: &str, denial: Denial) -> String {
    format!(
        "(0x20, 0, 0, 0), (0x15, 0, 1, {call}), (0x06, 0, 0, {:#x})",
        denial as u32
    )
}

/// How a unit's SystemCallFilter= denies a call: with SystemCallErrorNumber=EPERM, and without.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Denial {
    Eperm = 0x0005_0001,
    Kill = 0x8000_0000,
}

/// epoll_ctl(2, EPOLL_CTL_ADD) fails with ENOSPC for descriptors from `limit` on, as if no watches were left
/// (`fs.epoll.max_user_watches`).
pub(crate) fn no_epoll_watches_from(limit: usize) -> String {
    format!(
        "(0x20, 0, 0, 0), (0x15, 0, 5, epoll_ctl), (0x20, 0, 0, 24), (0x15, 0, 3, 1), \
         (0x20, 0, 0, 32), (0x35, 0, 1, {limit}), (0x06, 0, 0, 0x0005001c)"
    )
}

/// Installs the filter in its first argument (PR_SET_SECCOMP, SECCOMP_MODE_FILTER), and executes the others. A call that none
/// of the instructions denies is allowed.
const FILTER: &str = r#"
import ctypes, os, struct, sys
numbers = {"epoll_ctl": (233, 21), "socket": (41, 198), "capset": (126, 91), "process_vm_readv": (310, 270),
    "fallocate": (285, 47), "memfd_create": (319, 279), "flock": (73, 32),
    "seccomp": (317, 277), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438)}
globals().update({name: by_machine[os.uname().machine == "aarch64"] for name, by_machine in numbers.items()})
calls = eval(f"[{sys.argv[1]}]")
filter = b"".join(struct.pack("HBBI", *instruction) for instruction in (*calls, (0x06, 0, 0, 0x7fff0000)))
program = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.cast(filter, ctypes.c_void_p).value)
if ctypes.CDLL(None).prctl(22, 2, program, 0, 0):
    sys.exit("no filter")
os.execvp(sys.argv[2], sys.argv[2:])
"#;
