//! Propagates the library through exec(3).
//!
//! Some master processes empty the environment of their children (Postfix, Dovecot, cron, nginx when it upgrades itself). Such
//! a child would have neither LD_PRELOAD nor the library's own variables, and the supervisor would answer each of its accept(2)
//! calls, which takes 20 us longer. So the variables are added to the environment that is passed to the kernel.
//!
//! The functions of exec(3) are called in children of vfork(2), which share the memory of a parent that may hold any lock:
//! they allocate nothing, lock nothing, and write only to the caller's stack. An environment that does not fit there stays
//! as it is, and the supervisor answers.

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
    // A relative path means another file in another working directory.
    let libraries = environment::variable(PRELOAD).unwrap_or_default();
    if let Some(path) = paths(libraries).find(|path| path.starts_with(b"/") && is_ours(path)) {
        LIBRARY.write(path);
    }
}

/// Buffer for an environment, on the stack.
pub(crate) struct Environment {
    entries: [*const c_char; MAX_ENTRIES],
    preload: [u8; MAX_PRELOAD],
}

impl Environment {
    /// An empty buffer.
    pub(crate) const EMPTY: Self = Self {
        entries: [ptr::null(); MAX_ENTRIES],
        preload: [0; MAX_PRELOAD],
    };

    /// Adds the library's variables to a program's environment: the same entries, followed by the variables that are missing.
    /// Other libraries in LD_PRELOAD stay there, behind this one.
    ///
    /// `None` if nothing is missing, if the result does not fit, or if it would be of no use: ld.so(8) complains about a
    /// library that the user can't open, and a process that can't open the table is served by the supervisor in any case.
    pub(crate) fn complete<'a>(
        &mut self,
        environment: impl Iterator<Item = &'a CStr> + Clone,
    ) -> Option<*const *const c_char> {
        let value = |name| {
            let mut entries = environment.clone();
            entries.find_map(|entry| entry_value(entry, name))
        };
        let preloaded = value(PRELOAD).unwrap_or_default();
        let library = LIBRARY.get().to_bytes();
        let has_library = paths(preloaded).any(|path| path == library);
        let missing = VARIABLES
            .iter()
            .filter(|(name, text)| !text.get().is_empty() && value(name).is_none());
        let is_complete = has_library && missing.clone().next().is_none();
        if library.is_empty() || is_complete || !is_usable() {
            return None;
        }
        let (library, separator): (&[u8], &[u8]) = if has_library {
            (b"", b"")
        } else if preloaded.is_empty() {
            (library, b"")
        } else {
            (library, b":")
        };
        self.write_preload([PRELOAD, b"=", library, separator, preloaded])?;
        let mut entries = self.entries.iter_mut();
        for entry in environment.clone() {
            if entry_value(entry, PRELOAD).is_none() {
                *entries.next()? = entry.as_ptr();
            }
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
        let (value, end) = self.preload.split_at_mut_checked(len)?;
        *end.first_mut()? = 0;
        let bytes = parts.into_iter().flatten();
        value
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Some(())
    }
}

/// The value in an entry of an environment, if the entry has this name.
fn entry_value<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// The libraries of LD_PRELOAD (ld.so(8)).
fn paths(libraries: &[u8]) -> impl Iterator<Item = &[u8]> {
    libraries.split(|&byte| byte == b' ' || byte == b':')
}

fn is_ours(path: &[u8]) -> bool {
    path.ends_with(b"/libpeername.so") || path.ends_with(b"/libproxyproto.so")
}

/// Whether a process that is executed now can open the library and the table.
fn is_usable() -> bool {
    let can_open_table = || {
        let entry = TABLE.get().to_bytes_with_nul();
        let path = entry.strip_prefix(b"PEERNAME_TABLE=")?;
        Some(can_open(CStr::from_bytes_with_nul(path).ok()?, true))
    };
    // Without a launcher there is no such file.
    can_open(LIBRARY.get(), false) && can_open_table().unwrap_or(true)
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

/// Bytes of a variable with its name. The path of the launcher's table has 60.
const MAX_VARIABLE: usize = 128;
/// Entries of an environment: 4 KiB, on the stack of a thread that may be small.
const MAX_ENTRIES: usize = 512;
/// Bytes of LD_PRELOAD.
const MAX_PRELOAD: usize = 1024;
