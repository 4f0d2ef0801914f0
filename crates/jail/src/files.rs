//! What the program sees instead of files of the host, in its mount namespace alone.

mod browser_policies;
mod cover;
mod devices;
mod hashed_dirs;
mod kernel_settings;
mod mount_table;
mod outside_mounts;
mod private_dir;
mod ssh_config;
mod trust_stores;

use std::collections::BTreeSet;
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

/// The outcome of [`cover()`].
#[derive(Debug)]
pub struct Covered {
    /// Whether a Java keystore was found and covered: Java needs no option to trust the interceptor.
    pub has_java_keystore: bool,
    /// Files that the mediator covers again where processes outside replace them.
    pub files: Vec<Cover>,
}

/// Covers files of the host by the jail's, which it writes to the file system of the private directory: bundles of trusted
/// authorities, `/etc/resolv.conf` and `/etc/hosts`. Covers by empty ones what the program could use to act outside, and
/// `hidden`, the files and directories of `--hide`.
///
/// To be called in the jail's mount namespace. From then on mounts that are made outside do not reach this namespace.
///
/// A cover stays while processes outside write to the covered file. If they replace or remove the file (rename(2), unlink(2)),
/// the kernel removes the cover; it keeps the cover of a directory. [`Covered::files`] can be covered again, because mounts
/// that are made in this namespace later reach the program's.
pub fn cover(
    dir: &PrivateDir,
    trust: &TrustFiles,
    hidden: &[PathBuf],
) -> Result<Covered, JailError> {
    mounts::make_private().map_err(|source| JailError::cover(Path::new("/"), source))?;
    dir.mount()?;
    dir.write(&dir.certificates(), &trust.authority)?;
    dir.write(&dir.bundle(), &trust.bundle)?;
    dir.write(&dir.truststore(), &trust.java)?;
    let mut covers = hashed_dirs::copy(dir, trust)?;
    covers.extend(browser_policies::copy(dir, trust)?);
    covers.extend(ssh_config::copy(dir)?);
    // Before anything is covered.
    let table = mount_table::read()?;
    let outside_mounts = outside_mounts::prepare(dir, &table)?;
    write_names(dir)?;
    // Before the bind mounts of the covers: a bind mount is read-only only if its source was.
    dir.make_read_only()?;
    covers.iter().try_for_each(Cover::mount)?;
    let keystores = trust_stores::java();
    let files = needed_files(dir, &keystores);
    for file in &files {
        cover_existing(&file.original, &file.copy)?;
    }
    outside_mounts
        .iter()
        .try_for_each(outside_mounts::OutsideMount::cover)?;
    kernel_settings::make_read_only(&table)?;
    devices::cover(&dir.empty_file(), &table)?;
    hide(dir, hidden, &table)?;
    dir.hide_copies()?;
    reenter_working_directory()?;
    mounts::make_shared().map_err(|source| JailError::cover(Path::new("/"), source))?;
    Ok(Covered {
        has_java_keystore: !keystores.is_empty(),
        files,
    })
}

/// The covers of single files that programs need. Symbolic links are resolved, because the mediator has to cover the same file
/// again.
fn needed_files(dir: &PrivateDir, keystores: &BTreeSet<PathBuf>) -> Vec<Cover> {
    let resolve = |path: &str| fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let mut covers = vec![
        Cover::new(resolve("/etc/resolv.conf"), dir.resolv_conf()),
        Cover::new(resolve("/etc/hosts"), dir.hosts()),
    ];
    for bundle in trust_stores::bundles() {
        covers.push(Cover::new(bundle, dir.bundle()));
    }
    for keystore in keystores {
        covers.push(Cover::new(keystore, dir.truststore()));
    }
    covers
}

/// Writes `resolv.conf` and `hosts`. There is no search list: names are completed outside, where the host's list applies. In
/// the jail every completed name would resolve, to an address of its own.
fn write_names(dir: &PrivateDir) -> Result<(), JailError> {
    dir.write(
        &dir.resolv_conf(),
        b"nameserver 127.0.0.1\noptions ndots:0\n",
    )?;
    let name = peername_sys::host_name();
    let text = format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n");
    dir.write(&dir.hosts(), text.as_bytes())
}

fn hide(dir: &PrivateDir, hidden: &[PathBuf], table: &[Mount]) -> Result<(), JailError> {
    // Before the first path is covered: another one may be below it.
    if let Some(path) = hidden.iter().find(|path| is_missing(path)) {
        return Err(JailError::NothingToHide(path.clone()));
    }
    for path in hidden {
        // The other paths of the file, by other mounts of its file system. The files are compared before the path is covered.
        let mut others = mount_table::other_paths(table, path);
        others.retain(|other| is_same_file(path, other));
        let mut parts = mount_table::mount_points_of_parts(table, path);
        // A mount point that this user can't reach shows the program nothing.
        parts.retain(|point| fs::metadata(point).is_ok());
        hide_path(dir, path)?;
        for other in others.iter().chain(&parts) {
            hide_path(dir, other)?;
        }
    }
    Ok(())
}

fn hide_path(dir: &PrivateDir, path: &Path) -> Result<(), JailError> {
    let empty = if path.is_dir() {
        dir.empty_dir()
    } else {
        dir.empty_file()
    };
    match mounts::bind_over(path, &empty) {
        // The path is below one that is covered already.
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

/// Enters the working directory again by its path. Else this process would stay in the directory below the cover, if there is
/// one.
fn reenter_working_directory() -> Result<(), JailError> {
    let Ok(path) = env::current_dir() else {
        // The directory was removed: it is empty.
        return Ok(());
    };
    match env::set_current_dir(&path) {
        // A directory above can't be searched, so no covered path leads there.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        entered => entered.map_err(|failed| JailError::WorkingDirectory { path, failed }),
    }
}
