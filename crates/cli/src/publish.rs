//! Replaces files that other programs may read at this moment.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

/// Replaces a world-readable file: a certificate, a seccomp profile, a drop-in of a unit.
///
/// # Errors
///
/// Those of [`replace_file`].
pub(crate) fn publish(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    replace_file(path, content, Some(Permissions::from_mode(0o644)))
}

/// Replaces a file atomically (rename(2)), so that no program reads half of it. `permissions`: whatever the umask says; `None`
/// leaves them to it.
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
    draft.push(format!(".{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&draft)
        .and_then(|mut file| {
            if let Some(permissions) = permissions {
                file.set_permissions(permissions)?;
            }
            file.write_all(content)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.with_context(|| format!("writing {}", path.display()))
}
