//! What the program sees instead of files of the host, in its mount namespace alone.

mod browser_policies;
mod cover;
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
use cover::cover_existing;
use mount_table::Mount;

pub use cover::{Cover, TrustFiles};
pub use private_dir::PrivateDir;

/// What was found.
#[derive(Debug)]
pub struct Covered {
    /// Whether a Java keystore was found and covered: Java needs no option to trust the interceptor.
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
        // Resolve symbolic links: the mediator has to cover the same target again.
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
    // Before the first is covered: another may be below it at one of its mounts.
    if let Some(path) = hidden.iter().find(|path| is_missing(path)) {
        return Err(JailError::NothingToHide(path.clone()));
    }
    for path in hidden {
        // Other mounts of its file system that show the file: compared before it is covered.
        let mut others = mount_table::other_paths(all, path);
        others.retain(|other| is_same_file(path, other));
        let parts = mount_table::points_of_parts(all, path).into_iter();
        // One that this user can't reach shows the program nothing.
        others.extend(parts.filter(|point| fs::metadata(point).is_ok()));
        hide_one(dir, path)?;
        others.iter().try_for_each(|other| hide_one(dir, other))?;
    }
    Ok(())
}

fn hide_one(dir: &PrivateDir, path: &Path) -> Result<(), JailError> {
    let empty = match path.is_dir() {
        true => dir.empty_dir(),
        false => dir.empty_file(),
    };
    match mounts::bind_over(path, &empty) {
        // It is below what is covered already.
        Err(error) if error.source.kind() == ErrorKind::NotFound => Ok(()),
        covered => covered.map_err(|source| JailError::cover(path, source)),
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => FileId::from(&one) == FileId::from(&other),
        _ => false,
    }
}

/// Enters the working directory by its path: this process is below the cover otherwise, if the directory is covered.
fn reenter_working_directory() -> Result<(), JailError> {
    let Ok(path) = env::current_dir() else {
        // It was removed: nothing can be in it.
        return Ok(());
    };
    match env::set_current_dir(&path) {
        // A directory above it can't be searched, so no path that is covered leads there.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        entered => entered.map_err(|failed| JailError::WorkingDirectory { path, failed }),
    }
}
