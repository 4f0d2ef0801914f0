//! Files for other programs, which may read them at any moment.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;
use peername_sys::fs::replace::replace_file;
use peername_sys::fs::text_file::explain_path;
use peername_sys::fs::{directory_of, open_path};

/// Replaces a world-readable file atomically: a certificate, a seccomp profile, a drop-in of a unit.
pub(crate) fn publish(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let writing = || format!("writing {}", path.display());
    let name = path.file_name().with_context(writing)?;
    let permissions = Permissions::from_mode(0o644);
    open_path(directory_of(path))
        .and_then(|directory| replace_file(directory, name, content, Some(permissions)))
        .map_err(|error| explain_path(path, error))
        .with_context(writing)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_is_replaced_with_its_mode_and_leaves_no_draft() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for content in ["old", "new"] {
            publish(&path, content.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }
}
