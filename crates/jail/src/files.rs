//! What the program sees instead of files of the host, in its mount namespace alone.

mod browser_policies;
mod devices;
mod hashed_dirs;
mod kernel_mounts;
mod mount_table;
mod private_dir;
mod ssh_config;
mod trust_stores;

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use peername_sys::fs::{FileId, mounts};

use crate::JailError;
use mount_table::Mount;
pub use private_dir::PrivateDir;

/// The authorities that the program trusts: the interceptor's, and the host's.
#[derive(Clone, Debug)]
pub struct TrustFiles {
    /// The interceptor's certificates (PEM).
    pub own: Vec<u8>,
    /// These, and those of the host.
    pub bundle: Vec<u8>,
    /// The same as a keystore for Java.
    pub java: Vec<u8>,
    /// The interceptor's certificates (PEM), each by the name that OpenSSL looks it up by.
    pub hashed: Vec<(String, Vec<u8>)>,
}

/// What was found.
#[derive(Debug)]
pub struct Covered {
    /// Whether the keystores of a Java were: it needs no option to trust the interceptor.
    pub java: bool,
    /// Files that the mediator covers again where processes outside replace them.
    pub files: Vec<Cover>,
}

/// Mounts the directory's file system, writes the files there, and covers the host's by them: bundles of trusted authorities,
/// `/etc/resolv.conf`, `/etc/hosts`, what would act outside, and `hidden`, the files and directories that the program sees
/// empty (`--hide`). To be called in the jail's mount namespace, which no mount outside reaches from then on.
///
/// A cover stays while processes outside write to the file; where they replace it by another (rename(2), unlink(2)), the
/// kernel removes the cover of a file, and keeps that of a directory above it. [`Covered::files`] can be covered again: mounts that
/// are made in this namespace later reach the program's.
///
/// # Errors
///
/// [`JailError::Cover`], [`JailError::Write`], [`JailError::NothingToHide`].
pub fn cover(
    dir: &PrivateDir,
    trust: &TrustFiles,
    hidden: &[PathBuf],
) -> Result<Covered, JailError> {
    mounts::stop_propagation().map_err(|source| JailError::cover(Path::new("/"), source))?;
    dir.mount()?;
    dir.write(&dir.certificates(), &trust.own)?;
    dir.write(&dir.bundle(), &trust.bundle)?;
    dir.write(&dir.truststore(), &trust.java)?;
    let mut covers = hashed_dirs::copy(dir, trust)?;
    covers.extend(browser_policies::copy(dir, trust)?);
    covers.extend(ssh_config::copy(dir)?);
    // Before the jail's own mounts.
    let all = mount_table::read()?;
    let kernel_mounts = kernel_mounts::find(dir, &all)?;
    write_names(dir)?;
    // Before anything is bound: a bind mount takes over that its source is read-only.
    dir.make_read_only()?;
    covers.iter().try_for_each(Cover::mount)?;
    let bundles = trust_stores::bundles().into_iter();
    let keystores = trust_stores::java();
    let files: Vec<_> = bundles
        .map(|bundle| Cover::new(bundle, dir.bundle()))
        .chain(
            keystores
                .iter()
                .map(|path| Cover::new(path, dir.truststore())),
        )
        .chain([
            Cover::new("/etc/resolv.conf", dir.resolv_conf()),
            Cover::new("/etc/hosts", dir.hosts()),
        ])
        // Where a link leads now.
        .map(|cover| {
            Cover::new(
                cover.original.canonicalize().unwrap_or(cover.original),
                cover.copy,
            )
        })
        .collect();
    for file in &files {
        cover_existing(&file.original, &file.copy)?;
    }
    kernel_mounts
        .iter()
        .try_for_each(kernel_mounts::KernelMount::cover)?;
    devices::protect(&dir.empty_file(), &all)?;
    hide(dir, hidden, &all)?;
    dir.hide_copies()?;
    reenter_working_directory()?;
    mounts::start_propagation().map_err(|source| JailError::cover(Path::new("/"), source))?;
    Ok(Covered {
        java: !keystores.is_empty(),
        files,
    })
}

/// A file or directory of the host, and the copy that covers it.
#[derive(Debug)]
pub struct Cover {
    pub(crate) original: PathBuf,
    pub(crate) copy: PathBuf,
}

impl Cover {
    fn new(original: impl Into<PathBuf>, copy: PathBuf) -> Self {
        Self {
            original: original.into(),
            copy,
        }
    }

    fn mount(&self) -> Result<(), JailError> {
        let covered = mounts::bind_recursively_over(&self.original, &self.copy);
        covered.map_err(|source| JailError::cover(&self.original, source))
    }
}

/// Without a search list: names are completed outside, where the host's list applies. In the jail every completed name would
/// resolve, to an address of its own.
fn write_names(dir: &PrivateDir) -> Result<(), JailError> {
    dir.write(
        &dir.resolv_conf(),
        b"nameserver 127.0.0.1\noptions ndots:0\n",
    )?;
    let name = peername_sys::host_name();
    let text = format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n");
    dir.write(&dir.hosts(), text.as_bytes())
}

fn hide(dir: &PrivateDir, hidden: &[PathBuf], all: &[Mount]) -> Result<(), JailError> {
    for path in hidden {
        let empty = match path.is_dir() {
            true => dir.empty_dir(),
            false => dir.empty_file(),
        };
        // The same file at another mount of its file system, while it can be compared.
        let others: Vec<_> = mount_table::other_paths(all, path)
            .into_iter()
            .filter(|other| is_same_file(path, other))
            .collect();
        match mounts::bind_over(path, &empty) {
            Err(error) if error.source.kind() == ErrorKind::NotFound => {
                return Err(JailError::NothingToHide(path.clone()));
            }
            covered => covered.map_err(|source| JailError::cover(path, source))?,
        }
        for other in others {
            mounts::bind_over(&other, &empty).map_err(|source| JailError::cover(&other, source))?;
        }
    }
    Ok(())
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => FileId::from(&one) == FileId::from(&other),
        _ => false,
    }
}

/// Covers a file, unless it does not exist or this user can't reach it: then the program can't either.
fn cover_existing(target: &Path, source: &Path) -> Result<(), JailError> {
    match mounts::bind_over(target, source) {
        Err(error) if error.is_permission() && target.symlink_metadata().is_ok() => {
            Err(JailError::cover(target, error))
        }
        Err(error) if error.is_permission() || error.source.kind() == ErrorKind::NotFound => Ok(()),
        covered => covered.map_err(|source| JailError::cover(target, source)),
    }
}

/// Enters the working directory by its path: this process is below the cover otherwise, if the directory is covered.
fn reenter_working_directory() -> Result<(), JailError> {
    let Ok(path) = env::current_dir() else {
        // It was removed: nothing can be in it.
        return Ok(());
    };
    match env::set_current_dir(&path) {
        // A directory above it can't be searched, and so was not covered by a path that leads there.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        entered => entered.map_err(|failed| JailError::WorkingDirectory { path, failed }),
    }
}
