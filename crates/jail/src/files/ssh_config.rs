//! The system's configuration of ssh(1): it refuses an included file that belongs neither to root nor to the user, and in an
//! ordinary user's jail, root's files belong to an unknown user.

use std::fs;
use std::path::Path;

use peername_sys::process::user;

use super::cover::Cover;
use super::private_dir::PrivateDir;
use crate::JailError;

/// Copies what is there, as far as the user may read it. To be called after the user namespace was entered.
pub(super) fn copy(dir: &PrivateDir) -> Result<Vec<Cover>, JailError> {
    let mut copies = Vec::new();
    // Root's jail has every user.
    let included = INCLUDED.iter().filter(|_| !user::is_root());
    for (number, original) in included.map(Path::new).enumerate() {
        let name = format!("ssh-{number}");
        let copy = if original.is_dir() {
            let copy = dir.create_copy(&name)?;
            for entry in fs::read_dir(original).into_iter().flatten().flatten() {
                copy_file(dir, &entry.path(), &copy.join(entry.file_name()))?;
            }
            copy
        } else {
            let copy = dir.copy(&name);
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

/// Follows symbolic links. What is no file, or can't be read, is left out.
fn copy_file(dir: &PrivateDir, original: &Path, copy: &Path) -> Result<(), JailError> {
    match fs::read(original) {
        Ok(content) if content.len() <= MAX_BYTES => dir.write(copy, &content),
        _ => Ok(()),
    }
}

/// What the files of distributions include: Debian, Fedora, Arch; SUSE; and, in one of Fedora's, the system's cryptographic
/// policy.
const INCLUDED: [&str; 3] = [
    "/etc/ssh/ssh_config.d",
    "/usr/etc/ssh/ssh_config.d",
    "/etc/crypto-policies/back-ends/openssh.config",
];
/// Of one file.
const MAX_BYTES: usize = 256 * 1024;
