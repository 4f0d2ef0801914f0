//! File systems in which a file is no file: a name that is looked up in autofs is mounted by a program outside, which may ask
//! the network for it, and a file of mqueue is a message queue of the host.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;

use super::failed;
use super::private_dir::{PrivateDir, failed_write};
use crate::JailError;

/// A mount that is covered, by a directory with what is mounted below it already.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KernelMount {
    point: PathBuf,
    copy: PathBuf,
    /// Each with its place in the copy.
    below: Vec<MountBelow>,
}

#[derive(Debug, PartialEq, Eq)]
struct MountBelow {
    point: PathBuf,
    copy: PathBuf,
}

/// Finds them, and makes the directories that will cover them. What is mounted over them entirely hides them already.
pub(super) fn find(dir: &PrivateDir) -> Result<Vec<KernelMount>, JailError> {
    let table = Path::new("/proc/self/mountinfo");
    let text = fs::read(table).map_err(|error| failed_write(table, error))?;
    let all: Vec<_> = text
        .split(|&byte| byte == b'\n')
        .filter_map(Mount::parse)
        .collect();
    let mut found = Vec::new();
    for (at, mount) in all
        .iter()
        .enumerate()
        .filter(|(_, mount)| mount.is_covered())
    {
        let later = all.iter().skip(at + 1).map(|later| &later.point);
        if later.clone().any(|point| mount.point.starts_with(point)) {
            continue;
        }
        let copy = dir.create_dir(&format!("mount-{at}"))?;
        let mut covered = KernelMount {
            point: mount.point.clone(),
            copy,
            below: Vec::new(),
        };
        for point in later.filter(|point| point.starts_with(&mount.point)) {
            covered
                .keep(point)
                .map_err(|error| failed_write(point, error))?;
        }
        found.push(covered);
    }
    Ok(found)
}

impl KernelMount {
    /// Keeps what is mounted at `point` visible, with all that is below it.
    fn keep(&mut self, point: &Path) -> io::Result<()> {
        let is_kept = self.below.iter().any(|kept| point.starts_with(&kept.point));
        if let Ok(name) = point.strip_prefix(&self.point)
            && !is_kept
        {
            let copy = self.copy.join(name);
            fs::create_dir_all(&copy)?;
            self.below.push(MountBelow {
                point: point.to_owned(),
                copy,
            });
        }
        Ok(())
    }

    pub(super) fn cover(&self) -> Result<(), JailError> {
        for below in &self.below {
            mounts::bind_recursively_over(&below.copy, &below.point)
                .map_err(|source| failed(&below.point, source))?;
        }
        match mounts::bind_recursively_over(&self.point, &self.copy) {
            // A directory above it can't be searched: the program does not reach it either.
            Err(error) if error.is_permission() && self.point.symlink_metadata().is_err() => Ok(()),
            covered => covered.map_err(|source| failed(&self.point, source)),
        }
    }
}

/// A line of /proc/self/mountinfo (proc(5)).
struct Mount {
    point: PathBuf,
    kind: Vec<u8>,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        let separator = fields.iter().position(|field| *field == b"-")?;
        Some(Self {
            point: unescape(fields.get(4)?),
            kind: fields.get(separator + 1)?.to_vec(),
        })
    }

    fn is_covered(&self) -> bool {
        [&b"autofs"[..], b"mqueue"].contains(&&*self.kind)
    }
}

/// Spaces and the like are written as a backslash and three octal digits.
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

    #[test]
    fn mounts_are_parsed() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 shared:2 - autofs - rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.point, Path::new("/mnt 2"));
        assert!(mount.is_covered());
        let line = b"36 35 98:0 / / rw - ext4 /dev/root rw";
        assert!(!Mount::parse(line).unwrap().is_covered());
        assert!(Mount::parse(b"").is_none());
        assert_eq!(unescape(b"\\"), Path::new("\\"));
    }
}
