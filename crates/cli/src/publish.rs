//! Replaces files atomically: other programs may read them at any moment.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use peername_sys::random;

/// Replaces a world-readable file: a certificate, a seccomp profile, a drop-in of a unit.
///
/// # Errors
///
/// Those of [`replace_file`].
pub(crate) fn publish(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    replace_file(path, content, Some(Permissions::from_mode(0o644)))
}

/// Replaces a file atomically (rename(2)), so that no program reads half of it. The file gets `permissions` regardless of the
/// umask, or by the umask if there are none.
///
/// # Errors
///
/// The file can't be created, written or renamed.
pub(crate) fn replace_file(
    path: &Path,
    content: &[u8],
    permissions: Option<Permissions>,
) -> anyhow::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    // A random number: a killed process may have left a draft, and in a container process ids repeat soon.
    draft.push(format!(".{:016x}", random::words::<1>()?[0]));
    let draft = PathBuf::from(draft);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    if permissions.is_some() {
        // Until fchmod(2): the umask may let others read.
        options.mode(0o600);
    }
    let mut file = options
        .open(&draft)
        .with_context(|| format!("writing {}", draft.display()))?;
    let written = permissions
        .map_or(Ok(()), |permissions| file.set_permissions(permissions))
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn file_is_replaced_with_its_mode_and_leaves_no_draft() {
        let dir = env::temp_dir().join(format!("peername-publish-{}", process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("file");
        for content in ["old", "new"] {
            publish(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }
}
