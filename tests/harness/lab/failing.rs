//! Programs for which a system call fails, by a seccomp filter.

/// The command that starts the program after it with these calls failing.
pub(crate) fn failing_calls(calls: &str) -> [String; 3] {
    let script = FILTER.replace("CALLS", calls);
    ["python3".to_owned(), "-c".to_owned(), script]
}

/// socket(AF_NETLINK) fails with EAFNOSUPPORT: a unit's RestrictAddressFamilies= without AF_NETLINK.
pub(crate) const NO_NETLINK: &str = "(0x20, 0, 0, 0), (0x15, 0, 3, socket), (0x20, 0, 0, 16), \
                                     (0x15, 0, 1, 16), (0x06, 0, 0, 0x00050061)";
/// This call is answered so: with EPERM, or by the end of the process.
pub(crate) fn denied(call: &str, answer: Denial) -> String {
    format!(
        "(0x20, 0, 0, 0), (0x15, 0, 1, {call}), (0x06, 0, 0, {:#x})",
        answer as u32
    )
}

/// What a unit's SystemCallFilter= does: with and without SystemCallErrorNumber=EPERM.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(crate) enum Denial {
    Eperm = 0x0005_0001,
    Kill = 0x8000_0000,
}

/// epoll_ctl(2) fails with ENOSPC for descriptors from `limit` on: no watches are left
/// (`fs.epoll.max_user_watches`).
pub(crate) fn no_epoll_watches_from(limit: usize) -> String {
    format!(
        "(0x20, 0, 0, 0), (0x15, 0, 5, epoll_ctl), (0x20, 0, 0, 24), (0x15, 0, 3, 1), \
         (0x20, 0, 0, 32), (0x35, 0, 1, {limit}), (0x06, 0, 0, 0x0005001c)"
    )
}

/// A filter of seccomp(2): each call's instructions end with the return action; what reaches the end is
/// allowed.
const FILTER: &str = r#"
import ctypes, os, struct, sys
numbers = {"epoll_ctl": (233, 21), "socket": (41, 198), "capset": (126, 91), "process_vm_readv": (310, 270),
    "seccomp": (317, 277), "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438)}
globals().update({name: both[os.uname().machine == "aarch64"] for name, both in numbers.items()})
filter = b"".join(struct.pack("HBBI", *one) for one in [CALLS, (0x06, 0, 0, 0x7fff0000)])
program = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.cast(filter, ctypes.c_void_p).value)
if ctypes.CDLL(None).prctl(22, 2, program, 0, 0):
    sys.exit("no filter")
os.execvp(sys.argv[1], sys.argv[1:])
"#;
