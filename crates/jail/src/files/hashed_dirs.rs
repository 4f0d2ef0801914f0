//! Directories in which OpenSSL looks an authority up by a hash of its name. A program that ignores the environment variables
//! may read these instead of a bundle.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::{copy_symlink, mounts, open_path};

use super::cover::{Cover, TrustFiles};
use super::private_dir::PrivateDir;
use crate::JailError;

/// Copies each such directory, and adds the interceptor's authority. Symbolic links are copied as such, so that relative ones
/// lead where they did.
pub(super) fn copy(dir: &PrivateDir, trust: &TrustFiles) -> Result<Vec<Cover>, JailError> {
    let mut copies = Vec::new();
    for (number, original) in DIRECTORIES.iter().map(Path::new).enumerate() {
        if is_hashed(original) {
            let copy = dir.create_copy_dir(&format!("hashed-{number}"))?;
            dir.copy_access(original, &copy)?;
            copy_entries(dir, original, &copy)?;
            add_certificates(dir, &copy, &trust.hashed)?;
            copies.push(Cover::new(original, copy));
        }
    }
    Ok(copies)
}

fn copy_entries(dir: &PrivateDir, from: &Path, to: &Path) -> Result<(), JailError> {
    let open = |dir| open_path(dir).map_err(|source| JailError::read(dir, source));
    let (from_dir, to_dir) = (open(from)?, open(to)?);
    for entry in fs::read_dir(from).into_iter().flatten().flatten() {
        let (original, copy) = (entry.path(), to.join(entry.file_name()));
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_symlink() {
            // Relative to the open directories, which is faster: most of several hundred entries are links.
            copy_symlink(&from_dir, &to_dir, &entry.file_name())
                .map_err(|source| JailError::write(&copy, source))?;
        } else if kind.is_dir() {
            fs::create_dir(&copy).map_err(|source| JailError::write(&copy, source))?;
            mounts::bind_recursively_over(&copy, &original)
                .map_err(|source| JailError::cover(&original, source))?;
        } else if kind.is_file() {
            match fs::read(&original) {
                Ok(content) => dir.write_copy(&original, &copy, &content)?,
                // The program can't read it either.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(source) => return Err(JailError::read(&original, source)),
            }
        }
    }
    Ok(())
}

/// Adds certificates, each by its hash and the next free number (c_rehash(1)).
fn add_certificates(
    dir: &PrivateDir,
    to: &Path,
    hashed: &[(String, Vec<u8>)],
) -> Result<(), JailError> {
    for (hash, certificate) in hashed {
        let free = (0..MAX_COLLISIONS)
            .map(|number| to.join(format!("{hash}.{number}")))
            .find(|path| path.symlink_metadata().is_err());
        if let Some(free) = free {
            dir.write(&free, certificate)?;
        }
    }
    Ok(())
}

/// Whether the directory has a file whose name is a hash: `1a2b3c4d.0`.
fn is_hashed(dir: &Path) -> bool {
    fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| PathBuf::from(entry.file_name()))
        .any(|name| {
            let stem = name.file_stem().map(OsStr::as_bytes);
            let is_hash =
                stem.is_some_and(|stem| stem.len() == 8 && stem.iter().all(u8::is_ascii_hexdigit));
            is_hash && name.extension() == Some(OsStr::new("0"))
        })
}

/// Debian, Alpine, Arch, SUSE; Fedora and its derivatives.
const DIRECTORIES: [&str; 2] = ["/etc/ssl/certs", "/etc/pki/tls/certs"];
/// Authorities whose names have the same hash.
const MAX_COLLISIONS: usize = 16;
