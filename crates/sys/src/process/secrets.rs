//! Keeping secrets of this process out of core dumps and away from other processes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::{DumpableBehavior, set_dumpable_behavior};

use crate::{NameCall, Result};

/// Disables core dumps of this process; other processes of its user can't attach to it or read its memory either
/// (PR_SET_DUMPABLE, since Linux 2.3.20; ptrace(2)). execve(2) reverts it.
pub fn disable_core_dumps() -> Result<()> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable).call("prctl(PR_SET_DUMPABLE)")
}

/// Masks user names and passwords in URLs among this process's arguments, which every user could read in /proc/PID/cmdline.
/// Values that this process has read from its arguments before are copies, and are not masked.
///
/// # Errors
///
/// ENOENT without /proc; EACCES or EPERM where a sandbox forbids it.
pub fn mask_arguments() -> Result<()> {
    mask(&fs::read("/proc/self/cmdline").call("open(/proc/self/cmdline)")?)
        .call("write(/proc/self/mem)")
}

fn mask(arguments: &[u8]) -> io::Result<()> {
    let secrets = user_information(arguments);
    if secrets.is_empty() {
        return Ok(());
    }
    let start = arguments_start()?;
    let memory = File::options().write(true).open("/proc/self/mem")?;
    secrets.into_iter().try_for_each(|secret| {
        let stars = vec![b'*'; secret.len()];
        memory.write_all_at(&stars, start + secret.start as u64)
    })
}

/// Where the arguments begin in memory: `arg_start` of /proc/PID/stat (proc(5)).
fn arguments_start() -> io::Result<u64> {
    let stat = fs::read("/proc/self/stat")?;
    // The second field, the name in parentheses, may have any characters; so the fields are counted from the third.
    let name_end = stat.iter().rposition(|&byte| byte == b')');
    let fields = name_end.and_then(|end| std::str::from_utf8(stat.get(end + 1..)?).ok());
    let start =
        fields.and_then(|fields| fields.split_whitespace().nth(ARG_START - 3)?.parse().ok());
    start.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The ranges between `://` and `@` in the authorities of URLs (RFC 3986, section 3.2.1).
fn user_information(arguments: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = arguments.get(at..) {
        let Some(separator) = rest.windows(3).position(|window| window == b"://") else {
            break;
        };
        let start = at + separator + 3;
        let rest = arguments.get(start..).unwrap_or_default();
        let is_end = |byte: &u8| b"\0/?#".contains(byte);
        let end = rest.iter().position(is_end).unwrap_or(rest.len());
        let authority = rest.get(..end).unwrap_or_default();
        if let Some(at_sign) = authority.iter().rposition(|&byte| byte == b'@') {
            found.push(start..start + at_sign);
        }
        at = start + end;
    }
    found
}

/// The number of the field, counted from 1.
const ARG_START: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_is_found() {
        let text = b"a\0--proxy\0http://u:p@ss@h/x@y\0http://h/u@x\0socks5h://u@h\0://";
        let found: Vec<_> = user_information(text)
            .into_iter()
            .map(|range| &text[range])
            .collect();
        assert_eq!(found, [&b"u:p@ss"[..], b"u"]);
    }
}
