//! The mounts of this mount namespace (/proc/self/mountinfo, proc(5)).

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::JailError;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: Vec<u8>,
    /// The mount that this one is on.
    parent: Vec<u8>,
    /// The device number, which all mounts of a file system share.
    pub(super) device: Vec<u8>,
    /// The path in the file system that is mounted at the point.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    /// The type of the file system.
    pub(super) kind: Vec<u8>,
}

/// Reads the mounts, in the order in which they were made. The order does not tell which mount hides which: a mount that an
/// initramfs has made and moved to the root, such as /dev, comes before the root.
pub(super) fn read() -> Result<Vec<Mount>, JailError> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(|error| JailError::read(table, error))?;
    Ok(text
        .split(|&byte| byte == b'\n')
        .filter_map(Mount::parse)
        .collect())
}

/// Returns the other paths of the file at this path, by other mounts of its file system. The path has no symbolic links.
pub(super) fn other_paths(mounts: &[Mount], path: &Path) -> Vec<PathBuf> {
    let Some(file) = FileLocation::find(mounts, path) else {
        return Vec::new();
    };
    file.mounts(mounts)
        .filter_map(|mount| mount.path_of(&file.path))
        .filter(|other| other != path)
        .collect()
}

/// Returns the mount points outside of the directory at this path at which a part of the directory is mounted and visible.
pub(super) fn mount_points_of_parts(mounts: &[Mount], path: &Path) -> Vec<PathBuf> {
    let Some(directory) = FileLocation::find(mounts, path) else {
        return Vec::new();
    };
    directory
        .mounts(mounts)
        .filter(|mount| mount.root != directory.path && mount.root.starts_with(&directory.path))
        .filter(|mount| !mount.is_hidden(mounts) && !mount.point.starts_with(path))
        .map(|mount| mount.point.clone())
        .collect()
}

/// Where a file is in its file system.
struct FileLocation<'a> {
    device: &'a [u8],
    path: PathBuf,
}

impl<'a> FileLocation<'a> {
    fn find(mounts: &'a [Mount], path: &Path) -> Option<Self> {
        // A hidden mount may have a longer path: one that was made before a mount on a directory above.
        let own = mounts
            .iter()
            .filter(|mount| path.starts_with(&mount.point) && !mount.is_hidden(mounts))
            .max_by_key(|mount| mount.point.components().count())?;
        let below = path.strip_prefix(&own.point).unwrap_or(path);
        Some(Self {
            device: &own.device,
            path: own.root.join(below),
        })
    }

    /// The mounts of its file system.
    fn mounts<'m>(&self, all: &'m [Mount]) -> impl Iterator<Item = &'m Mount> {
        all.iter().filter(|mount| mount.device == self.device)
    }
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        Some(Self {
            id: fields.first()?.to_vec(),
            parent: fields.get(1)?.to_vec(),
            device: fields.get(2)?.to_vec(),
            root: unescape(fields.get(3)?),
            point: unescape(fields.get(4)?),
            kind: fields.get(separator + 1)?.to_vec(),
        })
    }

    /// Returns the path of a file of the file system below this mount; `None` if the mount does not show the file.
    fn path_of(&self, in_file_system: &Path) -> Option<PathBuf> {
        let below = in_file_system.strip_prefix(&self.root).ok()?;
        // Joining an empty path would append a slash, which is an error for a file.
        Some(if below.as_os_str().is_empty() {
            self.point.clone()
        } else {
            self.point.join(below)
        })
    }

    /// Whether its point leads to another mount: one that is on this one, or on a directory above.
    pub(super) fn is_hidden(&self, mounts: &[Self]) -> bool {
        let is_on_it = |other: &Self| {
            other.parent == self.id && other.id != self.id && other.point == self.point
        };
        let mut below = Some(self);
        while let Some(mount) = below {
            if mounts.iter().any(|other| mount.is_behind(other)) {
                return true;
            }
            below = mounts
                .iter()
                .find(|other| other.id == mount.parent && other.id != mount.id);
        }
        mounts.iter().any(is_on_it)
    }

    /// Whether the path to its point leads to the other mount, if both are on the same mount. The root of the namespace is its
    /// own parent (proc_pid_mountinfo(5)), and on no mount.
    fn is_behind(&self, other: &Self) -> bool {
        let is_root = other.id == other.parent;
        !is_root
            && other.parent == self.parent
            && other.id != self.id
            && self.point.starts_with(&other.point)
    }

    /// Whether the file system is of one of these types.
    pub(super) fn is_one_of(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| kind.as_bytes() == self.kind)
    }
}

/// Decodes spaces and the like, which are written as a backslash and three octal digits.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &[&str]) -> Vec<Mount> {
        lines
            .iter()
            .map(|line| Mount::parse(line.as_bytes()).unwrap())
            .collect()
    }

    #[test]
    fn mounts_are_parsed() {
        let mounts = parse(&[
            "36 35 98:0 /sub /mnt\\0402 rw,noatime master:1 shared:2 - autofs - rw",
            "36 35 98:0 / / rw - ext4 /dev/root rw",
        ]);
        assert_eq!(mounts[0].point, Path::new("/mnt 2"));
        assert_eq!(mounts[0].root, Path::new("/sub"));
        assert!(mounts[0].is_one_of(&["autofs"]) && !mounts[1].is_one_of(&["autofs"]));
        assert!(Mount::parse(b"").is_none());
        assert_eq!(unescape(b"\\"), Path::new("\\"));
    }

    #[test]
    fn mount_is_hidden_by_one_that_is_on_it_or_above_it() {
        let mounts = parse(&[
            "22 27 0:6 / /dev rw - devtmpfs a rw",
            "23 22 0:7 / /dev/mqueue rw - mqueue b rw",
            // The root is listed after what the initramfs has mounted.
            "27 1 8:1 / / rw - ext4 c rw",
            "30 27 0:8 / /covered rw - autofs d rw",
            "31 30 8:2 / /covered rw - ext4 e rw",
            "32 27 0:9 / /above/auto rw - autofs f rw",
            "33 32 8:3 / /above/auto/home rw - ext4 g rw",
            "34 27 8:4 / /above rw - ext4 h rw",
        ]);
        let hidden: Vec<_> = mounts
            .iter()
            .filter(|mount| mount.is_hidden(&mounts))
            .map(|mount| (mount.point.to_str().unwrap(), mount.kind.as_slice()))
            .collect();
        assert_eq!(
            hidden,
            [
                ("/covered", &b"autofs"[..]),
                ("/above/auto", b"autofs"),
                ("/above/auto/home", b"ext4"),
            ]
        );
    }

    /// As on a host that runs from its initramfs.
    #[test]
    fn root_that_is_its_own_parent_hides_nothing() {
        let mounts = parse(&[
            "1 1 0:2 / / rw - rootfs a rw",
            "2 1 0:3 / /auto rw - autofs b rw",
        ]);
        assert!(!mounts.iter().any(|mount| mount.is_hidden(&mounts)));
    }

    #[test]
    fn file_is_found_at_each_mount_of_its_file_system() {
        let mounts = parse(&[
            "1 0 8:1 / / rw - ext4 a rw",
            "2 1 8:2 / /home rw - ext4 b rw",
            "3 1 8:2 /u/p /work rw - ext4 b rw",
            "4 1 8:2 / /sysroot rw - ext4 b rw",
            "5 1 8:3 / /other rw - ext4 c rw",
            "6 1 0:40 / /auto rw - autofs d rw",
            "7 6 8:4 / /auto rw - ext4 e rw",
            "8 1 8:4 /key /run/key rw - ext4 e rw",
            "9 3 8:2 /u/p/q /work/q rw - ext4 b rw",
            "10 1 8:2 /u/r /srv rw - ext4 b rw",
            "11 10 8:3 / /srv rw - ext4 c rw",
        ]);
        let others = |path| other_paths(&mounts, Path::new(path));
        assert_eq!(
            others("/home/u/p/x"),
            [Path::new("/work/x"), Path::new("/sysroot/u/p/x")]
        );
        assert_eq!(
            others("/work/x"),
            [Path::new("/home/u/p/x"), Path::new("/sysroot/u/p/x")]
        );
        assert_eq!(others("/home/v"), [Path::new("/sysroot/v")]);
        assert!(others("/etc/x").is_empty());
        // The file system that covers the automounter's; and a file that is mounted by itself, to which no slash is appended.
        assert_eq!(others("/auto/key"), [Path::new("/run/key")]);
        assert!(
            !others("/auto/key")[0]
                .as_os_str()
                .as_encoded_bytes()
                .ends_with(b"/")
        );
        let parts = |path| mount_points_of_parts(&mounts, Path::new(path));
        let both = ["/work", "/work/q"].map(Path::new);
        assert_eq!(parts("/home/u"), both);
        assert_eq!(parts("/home"), both);
        assert_eq!(parts("/home/u/p"), [Path::new("/work/q")]);
        // No part of `/` is mounted outside of it.
        assert!(parts("/").is_empty());
    }

    #[test]
    fn file_is_not_taken_for_one_of_a_hidden_mount() {
        let mounts = parse(&[
            "1 0 8:1 / / rw - ext4 a rw",
            "2 1 0:41 / /a/b rw - tmpfs old rw",
            "3 1 0:42 / /a rw - tmpfs new rw",
            "4 1 0:42 / /other rw - tmpfs new rw",
            "5 1 0:42 /b/c /part rw - tmpfs new rw",
        ]);
        let hidden = Path::new("/a/b");
        assert_eq!(other_paths(&mounts, hidden), [Path::new("/other/b")]);
        assert_eq!(mount_points_of_parts(&mounts, hidden), [Path::new("/part")]);
    }
}
