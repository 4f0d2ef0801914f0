//! The paths that a confined command may open.

use std::env;
use std::path::{Path, PathBuf};

use peername_sys::process::confine::files::AllowedFiles;

use super::needs::Needs;

pub(super) fn allowed(needs: &Needs) -> AllowedFiles {
    let mut read: Vec<PathBuf> = ALWAYS.iter().map(PathBuf::from).collect();
    // A backtrace reads the names of functions from it.
    read.extend(env::current_exe());
    read.extend(needs.files.iter().flat_map(|file| directories_of(file)));
    read.extend(needs.directories.iter().cloned());
    if needs.bpf_maps {
        // The maps have a value for each CPU.
        read.push(PathBuf::from("/sys/devices/system/cpu"));
    }
    if needs.resolves_names {
        read.extend(RESOLVER_PATHS.iter().map(PathBuf::from));
    }
    read.sort_unstable();
    read.dedup();
    AllowedFiles {
        read,
        remove_in: needs.removes.iter().flat_map(|file| parent(file)).collect(),
        append_in: needs
            .appends
            .iter()
            .filter_map(|file| parent(&file.canonicalize().ok()?))
            .collect(),
        resolves_names: needs.resolves_names,
    }
}

/// The directory of the file and, if the file is a symbolic link, the directory of its target.
fn directories_of(file: &Path) -> impl Iterator<Item = PathBuf> {
    let target = file.canonicalize().ok();
    parent(file)
        .into_iter()
        .chain(target.as_deref().and_then(parent))
}

fn parent(file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    file.parent().map(Path::to_owned)
}

/// This process's descriptors, which are counted, and the sysctls of IPv4, such as the range of ephemeral ports.
const ALWAYS: [&str; 2] = ["/proc/self/fd", "/proc/sys/net/ipv4"];

/// The paths that getaddrinfo(3) reads: its configuration (nsswitch.conf(5)), which other programs replace at run time, the
/// modules that are configured there, and the sockets and caches of local resolvers.
const RESOLVER_PATHS: [&str; 13] = [
    "/etc",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/nix/store",
    "/run",
    "/var/run",
    "/var/cache/nscd",
    "/var/db/nscd",
    "/var/lib/sss",
    "/var/lib/libvirt/dnsmasq",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_a_link_and_of_its_target_may_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let (links, targets) = (dir.path().join("links"), dir.path().join("targets"));
        std::fs::create_dir(&links).unwrap();
        std::fs::create_dir(&targets).unwrap();
        std::fs::write(targets.join("list"), "").unwrap();
        std::os::unix::fs::symlink("../targets/list", links.join("list")).unwrap();
        let needs = Needs {
            files: vec![links.join("list")],
            ..Needs::default()
        };
        let read = allowed(&needs).read;
        assert!(read.contains(&links) && read.contains(&targets), "{read:?}");
        assert!(!read.iter().any(|path| path == Path::new("/etc")));
    }
}
