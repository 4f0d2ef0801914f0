//! Programs for which a system call fails, by a seccomp filter.

/// The command that starts the program after it with these calls failing.
pub(crate) fn failing_calls(calls: &str) -> [String; 3] {
    let script = FILTER.replace("CALLS", calls);
    ["python3".to_owned(), "-c".to_owned(), script]
}

/// io_uring_setup(2) fails with EPERM: a unit's SystemCallFilter=, or a container's profile.
pub(crate) const NO_IO_URING: &str = "(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001)";
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
epoll_ctl = {"x86_64": 233, "aarch64": 21}[os.uname().machine]
filter = b"".join(struct.pack("HBBI", *one) for one in [CALLS, (0x06, 0, 0, 0x7fff0000)])
program = struct.pack("HxxxxxxP", len(filter) // 8, ctypes.cast(filter, ctypes.c_void_p).value)
if ctypes.CDLL(None).prctl(22, 2, program, 0, 0):
    sys.exit("no filter")
os.execvp(sys.argv[1], sys.argv[1:])
"#;
