//! What a command needs after its start.

use std::path::PathBuf;

/// What a command needs after its start, beyond what all of them do.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files that a reload reads again. Their directories may be read: editors and configuration management replace a file
    /// by a new one.
    pub files: Vec<PathBuf>,
    /// Directories that may be read.
    pub directories: Vec<PathBuf>,
    /// Files that are removed at the end.
    pub removes: Vec<PathBuf>,
    /// Names are resolved, for connections or at a reload.
    pub names: bool,
    /// Files are watched for changes (inotify(7)).
    pub watches: bool,
    /// The entries of eBPF maps (`--data-path kernel`).
    pub bpf_maps: bool,
    /// Packets are sent that show how NAT rules of this host change them.
    pub raw_packets: bool,
}
