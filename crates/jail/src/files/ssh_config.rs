//! Copies of the system's configuration of ssh(1), which refuses an included file that belongs neither to root nor to the user:
//! in an ordinary user's jail, root's files belong to an unknown user.

use std::fs;
use std::path::Path;

use peername_sys::process::user;

use super::cover::Cover;
use super::private_dir::PrivateDir;
use crate::JailError;

/// Copies the files that exist and that the user may read. To be called in the jail's user namespace.
pub(super) fn copy(dir: &PrivateDir) -> Result<Vec<Cover>, JailError> {
    // Root's jail has every user.
    if user::is_root() {
        return Ok(Vec::new());
    }
    let mut copies = Vec::new();
    for (number, original) in INCLUDED.iter().map(Path::new).enumerate() {
        let name = format!("ssh-{number}");
        let copy = if original.is_dir() {
            let copy = dir.create_copy_dir(&name)?;
            for entry in fs::read_dir(original).into_iter().flatten().flatten() {
                copy_file(dir, &entry.path(), &copy.join(entry.file_name()))?;
            }
            copy
        } else {
            let copy = dir.copy_path(&name);
            copy_file(dir, original, &copy)?;
            copy
        };
        if copy.exists()
            && let Ok(original) = original.canonicalize()
        {
            copies.push(Cover::new(original, copy));
        }
    }
    Ok(copies)
}

/// Copies a file; follows symbolic links. What is not a file, can't be read, or is too large is left out.
fn copy_file(dir: &PrivateDir, original: &Path, copy: &Path) -> Result<(), JailError> {
    match fs::read(original) {
        Ok(content) if content.len() <= MAX_FILE_BYTES => dir.write(copy, &content),
        _ => Ok(()),
    }
}

/// The paths that the configuration files of distributions include: Debian, Fedora, Arch; SUSE; and, in a file of Fedora's, the
/// system's cryptographic policy.
const INCLUDED: [&str; 3] = [
    "/etc/ssh/ssh_config.d",
    "/usr/etc/ssh/ssh_config.d",
    "/etc/crypto-policies/back-ends/openssh.config",
];
const MAX_FILE_BYTES: usize = 256 * 1024;
