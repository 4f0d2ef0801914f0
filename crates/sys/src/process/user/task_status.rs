//! The identity and the pending signals of another thread (/proc/TID/status, proc(5)).

use std::fs::File;
use std::io::{self, Read};
use std::str::FromStr;

use crate::process::caps::CapabilitySet;

/// The identity of a thread, and whether a signal is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStatus {
    /// The id of its process (the thread group).
    pub process: u32,
    /// The user id for files (setfsuid(2)): the effective one, unless the thread has set another.
    pub user: u32,
    /// The group id for files.
    pub group: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The file mode creation mask (since Linux 4.7).
    pub umask: u32,
    /// The effective capabilities.
    pub capabilities: CapabilitySet,
    /// Whether a signal is pending that the thread neither blocks nor ignores.
    pub is_signalled: bool,
}

impl TaskStatus {
    /// Reads the status of a thread; ids are those of this process's user namespace.
    ///
    /// # Errors
    ///
    /// ENOENT or ESRCH where the thread has exited; [`io::ErrorKind::InvalidData`] for a kernel before Linux 4.7.
    pub fn read(tid: u32) -> io::Result<Self> {
        // Large enough for one read(2): without a size, the standard library begins with a few bytes.
        let mut text = String::with_capacity(USUAL_SIZE);
        File::open(format!("/proc/{tid}/status"))?.read_to_string(&mut text)?;
        Self::parse(&text).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        // The fields have to be read in the order of the lines: each search begins after the line found before.
        let mut field = |name: &str| {
            let (_, value) = lines.find(|(found, _)| *found == name)?;
            Some(value.trim())
        };
        let umask = u32::from_str_radix(field("Umask")?, 8).ok()?;
        let process = field("Tgid")?.parse().ok()?;
        let user = id_for_files(field("Uid")?)?;
        let group = id_for_files(field("Gid")?)?;
        let groups = field("Groups")?.split_ascii_whitespace();
        let groups = groups.map(u32::from_str).collect::<Result<_, _>>().ok()?;
        let mut mask = |name| u64::from_str_radix(field(name)?, 16).ok();
        let pending = mask("SigPnd")? | mask("ShdPnd")?;
        let is_signalled = pending & !mask("SigBlk")? & !mask("SigIgn")? != 0;
        Some(Self {
            process,
            user,
            group,
            groups,
            umask,
            capabilities: CapabilitySet::from_bits_retain(mask("CapEff")?),
            is_signalled,
        })
    }
}

/// The last of four ids: real, effective, saved, and for files.
fn id_for_files(ids: &str) -> Option<u32> {
    ids.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// A buffer in bytes that the file fits into, unless the thread has very many groups.
const USUAL_SIZE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_status_is_read() {
        let status = TaskStatus::read(std::process::id()).unwrap();
        assert_eq!(status.process, std::process::id());
        assert_eq!(status.user, super::super::effective_uid());
    }

    #[test]
    fn fields_are_parsed() {
        let text = "Name:\tUid:\t9\nUmask:\t0022\nTgid:\t7\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 20 \n\
            SigPnd:\t0000000000000000\nShdPnd:\t0000000000004002\nSigBlk:\t0000000000004000\n\
            SigIgn:\t0000000000000002\nCapEff:\t0000000000000001\n";
        let status = TaskStatus::parse(text).unwrap();
        let expected = TaskStatus {
            process: 7,
            user: 4,
            group: 8,
            groups: vec![4, 20],
            umask: 0o22,
            capabilities: CapabilitySet::CHOWN,
            is_signalled: false,
        };
        assert_eq!(status, expected);
        let signalled = text.replace("SigIgn:\t0000000000000002", "SigIgn:\t0000000000000000");
        assert!(TaskStatus::parse(&signalled).unwrap().is_signalled);
        assert_eq!(TaskStatus::parse("Tgid:\t7\n"), None);
    }
}
