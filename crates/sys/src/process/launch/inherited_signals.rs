//! Signals that the parent ignores, and this process must not: the program that it becomes ignores them again.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and `Command` resets it to the default action, which would end a server whose
//! client disconnects; systemd lets services ignore it (`IgnoreSIGPIPE=`, systemd.exec(5)). Where SIGCHLD is ignored, waitpid(2)
//! finds no child (ECHILD).

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

/// A signal, and whether this process has inherited SIG_IGN for it.
struct InheritedSignal {
    number: c_int,
    is_ignored: AtomicBool,
}

static SIGNALS: [InheritedSignal; 2] = [
    InheritedSignal::new(libc::SIGPIPE),
    InheritedSignal::new(libc::SIGCHLD),
];

/// Run by the C library, before Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RESET_ALL: extern "C" fn() = reset_all;

impl InheritedSignal {
    const fn new(number: c_int) -> Self {
        Self {
            number,
            is_ignored: AtomicBool::new(false),
        }
    }
}

/// Records what was inherited, and sets the default actions.
extern "C" fn reset_all() {
    for signal in &SIGNALS {
        // SAFETY: no handler is installed.
        let inherited = unsafe { libc::signal(signal.number, libc::SIG_DFL) };
        let is_ignored = inherited == libc::SIG_IGN;
        signal.is_ignored.store(is_ignored, Ordering::Relaxed);
    }
}

/// Makes the process ignore the signals again when it executes the command, after `Command` has reset SIGPIPE.
pub(super) fn restore_in(command: &mut Command) {
    // SAFETY: the closure makes system calls only.
    unsafe {
        command.pre_exec(|| {
            for signal in &SIGNALS {
                if signal.is_ignored.load(Ordering::Relaxed) {
                    libc::signal(signal.number, libc::SIG_IGN);
                }
            }
            Ok(())
        })
    };
}
