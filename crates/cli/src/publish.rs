//! Writes world-readable files that other programs may read at this moment: certificates, seccomp profiles, drop-ins of units.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context;

/// Replaces a file atomically (rename(2)), so that no program reads half of it.
///
/// # Errors
///
/// The file can't be created, written or renamed.
pub(crate) fn publish(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&draft)
        .and_then(|mut file| {
            // Independent of the umask.
            file.set_permissions(Permissions::from_mode(0o644))?;
            file.write_all(content)
        })
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written.with_context(|| format!("writing {}", path.display()))
}
