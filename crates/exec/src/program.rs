//! Inspects a program before it is started, and selects the mechanism that shows it its clients.
//!
//! Preloading by the dynamic linker is cheaper, but a static program has no dynamic linker, and Go makes its system calls
//! itself even where it has one. With the wrong mechanism a program would take its balancer for its client; so its file is
//! inspected before anything is started.

mod elf;
mod script;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::is_executable;
use peername_sys::process::executable::{PrivilegeGain, privilege_gain};
use peername_sys::process::launch::exit_code;

use elf::Elf;
use script::Interpreter;

/// An inspected program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The file that was named, or found by the search path.
    pub file: PathBuf,
    /// The mechanism that reaches it.
    pub mechanism: Mechanism,
    /// Why that mechanism was selected.
    pub reason: Reason,
}

/// The mechanism by which a program is shown its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// A library that the dynamic linker loads before all others.
    Preload,
    /// A supervisor that answers its system calls (seccomp_unotify(2)).
    Notify,
}

/// The reason for a [`Mechanism`], with the file that decided: for a script, its interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file has a dynamic linker.
    Dynamic(PathBuf),
    /// The file has no dynamic linker.
    Static(PathBuf),
    /// It is written in Go.
    Go(PathBuf),
    /// It is for another machine type than the library.
    Foreign(PathBuf),
    /// It is a shell or another program that starts others: the programs that it will start are unknown, and may be of any kind.
    Starter(PathBuf),
    /// It may be executed but not read, so its kind is unknown.
    Unreadable(PathBuf),
}

/// An error returned by [`examine`]: the program can't be run, or can't be shown its clients.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// There is no such file.
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    /// The file names an interpreter that does not exist.
    #[error("{}: its interpreter {} is missing", file.display(), interpreter.display())]
    NoInterpreter {
        /// The file: the program, or an interpreter that is a script itself.
        file: PathBuf,
        /// The file that is missing.
        interpreter: PathBuf,
    },
    /// The file exists and is not executable.
    #[error("{}: not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// The file can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The interpreters of the script are scripts themselves, on more levels than are followed.
    #[error("{}: a chain of more than {MAX_INTERPRETERS} interpreters", .0.display())]
    TooManyInterpreters(PathBuf),
    /// The program gains privileges by being executed, see [`PrivilegeGain`].
    #[error(
        "{} gains {what} by being executed: such programs ignore LD_PRELOAD, and system calls can't be \
         answered for them. Start it as the user it would become, or use --mode netns",
        path.display()
    )]
    Privileged {
        /// The file.
        path: PathBuf,
        /// The kind of privileges.
        what: &'static str,
    },
}

/// Inspects the program `name`: searches for it in `search` (the value of PATH) as execvp(3) does, and follows the
/// interpreters of scripts.
pub fn examine(name: &OsStr, search: &OsStr) -> Result<Program, ProgramError> {
    let file = find(name, search)?;
    let mut next = file.clone();
    for _ in 0..=MAX_INTERPRETERS {
        refuse_privileged(&next)?;
        let unreadable = |source| ProgramError::Unreadable {
            path: next.clone(),
            source,
        };
        let content = match File::open(&next) {
            Ok(content) => content,
            // A file with execute permission and without read permission can't be inspected.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(Program::new(file, Reason::Unreadable(next)));
            }
            Err(error) => return Err(unreadable(error)),
        };
        match script::interpreter(&content).map_err(unreadable)? {
            Interpreter::None => return Ok(Program::new(file, classify_binary(next, content))),
            Interpreter::File(interpreter)
                if interpreter.try_exists().is_ok_and(|exists| !exists) =>
            {
                return Err(ProgramError::NoInterpreter {
                    file: next,
                    interpreter,
                });
            }
            Interpreter::File(path) => next = path,
            Interpreter::Searched(name) => next = find(&name, search)?,
        }
    }
    Err(ProgramError::TooManyInterpreters(file))
}

impl Program {
    fn new(file: PathBuf, reason: Reason) -> Self {
        Self {
            file,
            mechanism: reason.mechanism(),
            reason,
        }
    }

    /// Whether a preloaded library is loaded into the program itself, regardless of the programs that it starts.
    pub fn loads_libraries(&self) -> bool {
        match &self.reason {
            Reason::Dynamic(_) | Reason::Unreadable(_) => true,
            Reason::Static(_) | Reason::Go(_) | Reason::Foreign(_) => false,
            // A shell may be static itself (busybox). A file that is no binary is run by /bin/sh.
            Reason::Starter(path) => File::open(path)
                .ok()
                .and_then(Elf::read)
                .is_none_or(|elf| elf.has_dynamic_linker && elf.is_native && !elf.is_go),
        }
    }
}

impl ProgramError {
    /// The exit code: that of shells for a program that can't be run (126, 127), else the launcher's own (125).
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound(_) | Self::NoInterpreter { .. } => exit_code::NOT_FOUND,
            Self::NotExecutable(_) | Self::Unreadable { .. } | Self::TooManyInterpreters(_) => {
                exit_code::NOT_EXECUTABLE
            }
            Self::Privileged { .. } => exit_code::LAUNCHER_FAILED,
        }
    }
}

impl Reason {
    /// Whether the library can't be loaded into the program. For a [starter](Self::Starter) and an
    /// [unreadable file](Self::Unreadable) this is unknown.
    pub fn rules_out_preloading(&self) -> bool {
        matches!(self, Self::Static(_) | Self::Go(_) | Self::Foreign(_))
    }

    fn mechanism(&self) -> Mechanism {
        match self {
            // The supervisor runs in this mode too, and answers the calls of a starter's children without the library.
            Self::Dynamic(_) | Self::Starter(_) | Self::Unreadable(_) => Mechanism::Preload,
            Self::Static(_) | Self::Go(_) | Self::Foreign(_) => Mechanism::Notify,
        }
    }
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (path, what) = match self {
            Self::Dynamic(path) => (path, "is dynamically linked"),
            Self::Static(path) => (path, "is statically linked"),
            Self::Go(path) => (path, "is a Go program, which makes its system calls itself"),
            Self::Foreign(path) => (
                path,
                "is for another machine type than the preloaded library",
            ),
            Self::Starter(path) => (path, "may start programs of any kind"),
            Self::Unreadable(path) => (path, "can't be read, so it may be of any kind"),
        };
        write!(f, "{} {what}", path.display())
    }
}

impl Display for Mechanism {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Preload => "preload",
            Self::Notify => "notify",
        })
    }
}

/// The search path of this process (PATH), or the default of execvp(3).
pub fn search_path() -> OsString {
    env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into())
}

fn classify_binary(path: PathBuf, content: File) -> Reason {
    if is_starter(&path) {
        return Reason::Starter(path);
    }
    match Elf::read(content) {
        Some(elf) if elf.is_go => Reason::Go(path),
        Some(elf) if !elf.has_dynamic_linker => Reason::Static(path),
        Some(elf) if !elf.is_native => Reason::Foreign(path),
        Some(_) => Reason::Dynamic(path),
        // execvp(3) runs a file of an unknown format by a shell.
        None => Reason::Starter(path),
    }
}

fn is_starter(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = path.file_name().unwrap_or_default().as_bytes();
    STARTERS.contains(&name)
}

/// Finds the file of a program, as execvp(3) does.
fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, ProgramError> {
    let named = PathBuf::from(name);
    if name.is_empty() {
        return Err(ProgramError::NotFound(named));
    }
    let candidates = match name.as_bytes().contains(&b'/') {
        true => vec![named.clone()],
        false => env::split_paths(search)
            .map(|directory| directory.join(name))
            .collect(),
    };
    if let Some(found) = candidates.iter().find(|path| is_executable(path)) {
        return Ok(found.clone());
    }
    Err(match candidates.into_iter().find(|path| path.exists()) {
        Some(existing) => ProgramError::NotExecutable(existing),
        None => ProgramError::NotFound(named),
    })
}

fn refuse_privileged(path: &Path) -> Result<(), ProgramError> {
    let gain = privilege_gain(path).map_err(|failed| ProgramError::Unreadable {
        path: path.to_owned(),
        source: failed.source,
    })?;
    let what = match gain {
        PrivilegeGain::Nothing => return Ok(()),
        PrivilegeGain::User => "another user (set-user-ID)",
        PrivilegeGain::Group => "another group (set-group-ID)",
        PrivilegeGain::Capabilities => "capabilities",
    };
    Err(ProgramError::Privileged {
        path: path.to_owned(),
        what,
    })
}

/// The kernel follows four interpreters and then returns ELOOP (execve(2)); each env(1) in between adds one.
const MAX_INTERPRETERS: usize = 8;

/// Starters: shells and other programs that start others.
const STARTERS: &[&[u8]] = &[
    b"sh",
    b"bash",
    b"dash",
    b"ash",
    b"busybox",
    b"zsh",
    b"ksh",
    b"ksh93",
    b"mksh",
    b"fish",
    b"env",
    b"nice",
    b"nohup",
    b"timeout",
    b"stdbuf",
    b"setsid",
    b"setpriv",
    b"setarch",
    b"chroot",
    b"runuser",
    b"unshare",
    b"nsenter",
    b"ionice",
    b"chrt",
    b"taskset",
    b"prlimit",
    b"xargs",
    b"script",
    b"gosu",
    b"su-exec",
    b"tini",
    b"dumb-init",
    b"catatonit",
    b"capsh",
    b"strace",
    b"gdb",
    b"perf",
];

#[cfg(test)]
mod tests;
