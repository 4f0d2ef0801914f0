//! The files that this process may open (landlock(7), since Linux 5.13).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, Scope,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::{NameCall, Result};

/// The files that may still be opened. Paths that do not exist are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedFiles {
    /// Files that may be read, and directories with everything beneath them.
    pub read: Vec<PathBuf>,
    /// Directories in which files may be removed.
    pub remove_in: Vec<PathBuf>,
    /// Directories in which files may be created and written.
    pub append_in: Vec<PathBuf>,
    /// Whether `read` has the files that getaddrinfo(3) needs, so that names can be resolved.
    pub resolves_names: bool,
}

/// Makes every attempt to open another file, and any other change to the file system, fail with EACCES. Open descriptors stay
/// usable; stat(2) and readlink(2) are not restricted, nor is connect(2) to a Unix socket with a path. Since Linux 6.12 it
/// also blocks signals to other processes and connections to their abstract Unix sockets.
///
/// Returns the version of Landlock, as [`supported_version`]; `None` if there is none, and nothing is restricted.
///
/// # Errors
///
/// E2BIG beyond 16 nested rulesets; else those of landlock_create_ruleset(2).
pub fn confine(allowed: &AllowedFiles) -> Result<Option<u32>> {
    let Some(version) = supported_version() else {
        return Ok(None);
    };
    let ruleset = ruleset(allowed).and_then(RulesetCreated::restrict_self);
    ruleset
        .map_err(io::Error::other)
        .call("landlock_restrict_self(2)")?;
    // Set once: a process has one start.
    let _ = CONFINED.set(Confined {
        _pinned: pin_kernel_files(allowed),
        resolves_names: allowed.resolves_names,
    });
    Ok(Some(version))
}

fn ruleset(allowed: &AllowedFiles) -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST_ABI))?
        .scope(Scope::from_all(NEWEST_ABI))?
        .create()?
        .add_rules(beneath(
            &allowed.read,
            AccessFs::ReadFile | AccessFs::ReadDir,
        ))?
        .add_rules(beneath(&allowed.remove_in, AccessFs::RemoveFile.into()))?
        .add_rules(beneath(
            &allowed.append_in,
            AccessFs::WriteFile | AccessFs::MakeReg,
        ))
}

fn beneath(
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> impl Iterator<Item = Result<PathBeneath<PathFd>, RulesetError>> {
    landlock::path_beneath_rules(paths, access)
}

/// The version of Landlock that this kernel supports; `None` if it has none, or it is not enabled (`lsm=` at boot).
pub fn supported_version() -> Option<u32> {
    // SAFETY: with this flag the call takes no pointer, and returns a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).ok().filter(|&version| version > 0)
}

/// Whether this process has given up resolving names.
pub(crate) fn are_names_denied() -> bool {
    CONFINED
        .get()
        .is_some_and(|confined| !confined.resolves_names)
}

/// Whether this process has confined itself, so that open(2) may fail where access(2) allows the file.
pub(crate) fn is_confined() -> bool {
    CONFINED.get().is_some()
}

/// Replaces an error of open(2) by [`OUTSIDE`] if confinement is its cause: access(2) still allows the file, because Landlock
/// does not restrict that call.
pub(crate) fn explain(path: &Path, error: io::Error) -> io::Error {
    let may_read = || accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS).is_ok();
    match error.kind() {
        io::ErrorKind::PermissionDenied if is_confined() && may_read() => {
            io::Error::new(error.kind(), OUTSIDE)
        }
        _ => error,
    }
}

/// Opens the allowed files of procfs and sysfs, so that the kernel does not evict their inodes from its cache: a rule belongs
/// to an inode, and these file systems would make a new one for the path.
fn pin_kernel_files(allowed: &AllowedFiles) -> Vec<PathFd> {
    allowed
        .read
        .iter()
        .filter(|path| path.starts_with("/proc") || path.starts_with("/sys"))
        .filter_map(|path| PathFd::new(path).ok())
        .collect()
}

/// What this process has confined itself to.
struct Confined {
    resolves_names: bool,
    _pinned: Vec<PathFd>,
}

/// The confinement of this process, which it can't ask the kernel for.
static CONFINED: OnceLock<Confined> = OnceLock::new();

/// The text of an error whose cause is confinement.
const OUTSIDE: &str = "outside of the directories that this process may read since its start: restart it to read \
    this one, or start it with --no-sandbox";

/// The newest version whose restrictions matter here: later ones restrict what is denied by other means, or not used.
const NEWEST_ABI: ABI = ABI::V7;
/// From `linux/landlock.h`.
const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
