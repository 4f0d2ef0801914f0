//! The line about processes that the supervisor may not access.

use std::mem;

use peername_sys::SyscallError;

use crate::stderr_line::try_write_line;

/// Logs once that the program's descriptors can't be copied.
#[derive(Debug, Default)]
pub(crate) struct DenialLog {
    is_written: bool,
}

impl DenialLog {
    pub(crate) fn write(&mut self, error: &SyscallError) {
        if !mem::replace(&mut self.is_written, true) {
            try_write_line(&format!(
                "peername: can't copy descriptors of a process without the library, so it can't accept: {error}. A sandbox denies \
                 the call (that is reported at the start), the process has other capabilities than the supervisor, or \
                 an ordinary user needs kernel.yama.ptrace_scope = 0"
            ));
        }
    }
}
