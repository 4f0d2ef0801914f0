//! The needs of a command after its start, which decide what its confinement allows.

use std::path::PathBuf;

/// The needs of a command after its start, beyond those of every command.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// Files that a reload reads again. Their directories may be read: editors and configuration management replace a file
    /// by a new one.
    pub files: Vec<PathBuf>,
    /// Directories that may be read.
    pub directories: Vec<PathBuf>,
    /// Files that are removed at the end.
    pub removes: Vec<PathBuf>,
    /// Log files that are opened again after a rotation: files beside them may be created and written.
    pub appends: Vec<PathBuf>,
    /// Names are resolved, for connections or at a reload.
    pub resolves_names: bool,
    /// Files are watched for changes (inotify(7)).
    pub watches: bool,
    /// eBPF maps are read and changed: UDP sessions are offloaded to the kernel.
    pub bpf_maps: bool,
    /// Packets are sent by raw sockets, to find out how NAT rules of this host change them.
    pub raw_packets: bool,
}
