//! Propagates the library through exec(3).
//!
//! Masters of servers empty the environment of what they start (Postfix, Dovecot, cron, nginx when it upgrades itself).
//! Such a process would have neither LD_PRELOAD nor the library's own variables, and each accept(2) of it would be
//! answered by the supervisor, for 30 us more. So they are added to the environment on its way to the kernel.
//!
//! The functions of exec(3) are called in children of vfork(2), which share the memory of a parent that may have been
//! holding any lock: nothing is allocated here, nothing is locked, and nothing is written but the caller's stack. Where
//! that room is not enough, the environment stays as it is, and the supervisor answers.

use core::ffi::{CStr, c_char};
use core::ptr;

use peername_preload_common::environment;
use peername_preload_common::kernel::{StaticText, can_open};

/// Records the library's variables in the environment of this process, at its start: later the environment may be emptied,
/// or overwritten (setproctitle(3)).
pub(crate) fn record() {
    for (name, text) in VARIABLES {
        if let Some(value) = environment::variable(name) {
            text.write(name.iter().chain(b"=").chain(value));
        }
    }
    // A relative path means another file elsewhere.
    let libraries = environment::variable(PRELOAD).unwrap_or_default();
    let absolute = |path: &&[u8]| path.starts_with(b"/");
    if let Some(path) = paths(libraries).filter(absolute).find(|path| is_ours(path)) {
        LIBRARY.write(path);
    }
}

/// Room for an environment, on the stack.
pub(crate) struct Environment {
    entries: [*const c_char; MAX_ENTRIES],
    preload: [u8; MAX_PRELOAD],
}

impl Environment {
    /// Nothing so far.
    pub(crate) const EMPTY: Self = Self {
        entries: [ptr::null(); MAX_ENTRIES],
        preload: [0; MAX_PRELOAD],
    };

    /// Completes a program's environment by what the library needs: the same entries, and behind them those that are
    /// missing. What else is to be preloaded stays so, behind the library.
    ///
    /// `None` if nothing is missing, if there is no room, or if it would be of no use: a user who can't open the library
    /// would be told so by ld.so(8), and one who can't open the table is served by the supervisor in any case.
    pub(crate) fn complete<'a>(
        &mut self,
        given: impl Iterator<Item = &'a CStr> + Clone,
    ) -> Option<*const *const c_char> {
        let value = |name| given.clone().find_map(|entry| value_of(entry, name));
        let preloaded = value(PRELOAD).unwrap_or_default();
        let library = LIBRARY.get().to_bytes();
        let has_library = paths(preloaded).any(|path| path == library);
        let missing = VARIABLES
            .iter()
            .filter(|(name, text)| !text.get().is_empty() && value(name).is_none());
        if library.is_empty() || has_library && missing.clone().count() == 0 || !is_usable() {
            return None;
        }
        let added: [&[u8]; 2] = match (has_library, preloaded.is_empty()) {
            (true, _) => [b"", b""],
            (false, true) => [library, b""],
            (false, false) => [library, b":"],
        };
        self.write_preload([PRELOAD, b"=", added[0], added[1], preloaded])?;
        let mut entries = self.entries.iter_mut();
        for entry in given
            .clone()
            .filter(|entry| value_of(entry, PRELOAD).is_none())
        {
            *entries.next()? = entry.as_ptr();
        }
        for (_, text) in missing {
            *entries.next()? = text.get().as_ptr();
        }
        *entries.next()? = self.preload.as_ptr().cast();
        *entries.next()? = ptr::null();
        Some(self.entries.as_ptr())
    }

    fn write_preload(&mut self, parts: [&[u8]; 5]) -> Option<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let (room, end) = self.preload.split_at_mut_checked(len)?;
        *end.first_mut()? = 0;
        let bytes = parts.into_iter().flatten();
        room.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Some(())
    }
}

fn value_of<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// The libraries of LD_PRELOAD (ld.so(8)).
fn paths(libraries: &[u8]) -> impl Iterator<Item = &[u8]> {
    libraries.split(|&byte| byte == b' ' || byte == b':')
}

fn is_ours(path: &[u8]) -> bool {
    path.ends_with(b"/libpeername.so") || path.ends_with(b"/libproxyproto.so")
}

/// Whether a process that is executed now can use the library.
fn is_usable() -> bool {
    let has_table = || {
        let entry = TABLE.get().to_bytes_with_nul();
        let path = entry.strip_prefix(b"PEERNAME_TABLE=")?;
        Some(can_open(CStr::from_bytes_with_nul(path).ok()?, true))
    };
    can_open(LIBRARY.get(), false) && has_table().unwrap_or(true)
}

const PRELOAD: &[u8] = b"LD_PRELOAD";

/// The library's variables: the launcher's, and those that users of libproxyproto set.
static VARIABLES: [(&[u8], &StaticText<MAX_VARIABLE>); 4] = [
    (b"PEERNAME_TABLE", &TABLE),
    (b"LIBPROXYPROTO_MUST_USE_PROTOCOL_HEADER", &MUST_USE),
    (b"LIBPROXYPROTO_VERSION", &VERSION),
    (b"LIBPROXYPROTO_DEBUG", &DEBUG),
];
static TABLE: StaticText<MAX_VARIABLE> = StaticText::new();
static MUST_USE: StaticText<MAX_VARIABLE> = StaticText::new();
static VERSION: StaticText<MAX_VARIABLE> = StaticText::new();
static DEBUG: StaticText<MAX_VARIABLE> = StaticText::new();
/// The path of this library.
static LIBRARY: StaticText<512> = StaticText::new();

/// The launcher's path of the table has 60 bytes.
const MAX_VARIABLE: usize = 128;
/// Entries of an environment: 4 KiB, on the stack of a thread that may be small.
const MAX_ENTRIES: usize = 512;
/// Bytes of LD_PRELOAD.
const MAX_PRELOAD: usize = 1024;
