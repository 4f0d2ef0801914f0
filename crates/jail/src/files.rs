//! What the program sees instead of files of the host, in its mount namespace alone.

mod devices;
mod hashed_dirs;
mod private_dir;
mod trust_stores;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peername_sys::SyscallError;
use peername_sys::fs::mounts;

use crate::JailError;
pub use private_dir::PrivateDir;

/// What is covered.
#[derive(Clone, Debug, Default)]
pub struct Covers {
    /// Files and directories that the program sees empty (`--hide`).
    pub hidden: Vec<PathBuf>,
    /// The host's Unix sockets ([`crate::unix_sockets::find`]), to which the program can't connect.
    pub sockets: BTreeSet<PathBuf>,
    /// Sockets, or directories with sockets, to which it can.
    pub reachable: Vec<PathBuf>,
}

/// The authorities that the program trusts: the interceptor's, and the host's.
#[derive(Clone, Debug)]
pub struct TrustFiles {
    /// The interceptor's certificates (PEM).
    pub own: Vec<u8>,
    /// These, and those of the host.
    pub bundle: Vec<u8>,
    /// The same as a keystore for Java.
    pub java: Vec<u8>,
    /// The interceptor's certificates (PEM), each by the name that OpenSSL looks it up by.
    pub hashed: Vec<(String, Vec<u8>)>,
}

/// Mounts the directory's file system, writes the files there, and covers the host's by them: bundles of trusted authorities,
/// `/etc/resolv.conf`, `/etc/hosts`, and what [`Covers`] lists. To be called in the jail's mount namespace.
///
/// # Errors
///
/// [`JailError::Cover`], [`JailError::Write`], [`JailError::NothingToHide`].
pub fn cover(dir: &PrivateDir, trust: &TrustFiles, covers: &Covers) -> Result<(), JailError> {
    mounts::stop_propagation().map_err(|source| failed(Path::new("/"), source))?;
    dir.mount()?;
    let (own, bundle, java) = (dir.certificates(), dir.bundle(), dir.truststore());
    dir.write(&own, &trust.own)?;
    dir.write(&bundle, &trust.bundle)?;
    dir.write(&java, &trust.java)?;
    hashed_dirs::cover(dir, trust)?;
    for target in trust_stores::bundles() {
        cover_existing(&target, &bundle)?;
    }
    for target in trust_stores::java() {
        cover_existing(&target, &java)?;
    }
    cover_names(dir)?;
    cover_sockets(dir, covers)?;
    devices::protect(&dir.empty_file()?)?;
    hide(dir, &covers.hidden)?;
    dir.make_read_only()
}

/// Without a search list: names are completed outside, where the host's list applies. In the jail every completed name would
/// resolve, to an address of its own.
fn cover_names(dir: &PrivateDir) -> Result<(), JailError> {
    let resolver = dir.file("resolv.conf");
    dir.write(&resolver, b"nameserver 127.0.0.1\noptions ndots:0\n")?;
    cover_existing(Path::new("/etc/resolv.conf"), &resolver)?;
    let hosts = dir.file("hosts");
    let name = peername_sys::host_name();
    let text = format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n");
    dir.write(&hosts, text.as_bytes())?;
    cover_existing(Path::new("/etc/hosts"), &hosts)
}

fn cover_sockets(dir: &PrivateDir, covers: &Covers) -> Result<(), JailError> {
    let is_reachable = |socket: &Path| {
        let mut reachable = covers.reachable.iter();
        reachable.any(|path| socket.starts_with(path))
    };
    let empty = dir.empty_file()?;
    let sockets = covers.sockets.iter().filter(|path| !is_reachable(path));
    sockets
        .into_iter()
        .try_for_each(|socket| cover_existing(socket, &empty))
}

fn hide(dir: &PrivateDir, hidden: &[PathBuf]) -> Result<(), JailError> {
    for path in hidden {
        let empty = match path.is_dir() {
            true => dir.empty_dir()?,
            false => dir.empty_file()?,
        };
        match mounts::cover(path, &empty) {
            Err(error) if error.errno() == Some(ENOENT) => {
                return Err(JailError::NothingToHide(path.clone()));
            }
            covered => covered.map_err(|source| failed(path, source))?,
        }
    }
    Ok(())
}

/// Covers a file, unless it does not exist or this user can't reach it: then the program can't either.
fn cover_existing(target: &Path, source: &Path) -> Result<(), JailError> {
    match mounts::cover(target, source) {
        Err(error) if error.is_permission() && target.symlink_metadata().is_ok() => {
            Err(failed(target, error))
        }
        Err(error) if error.is_permission() || error.errno() == Some(ENOENT) => Ok(()),
        covered => covered.map_err(|source| failed(target, source)),
    }
}

fn failed(path: &Path, failed: SyscallError) -> JailError {
    JailError::Cover {
        path: path.to_owned(),
        failed,
    }
}

/// From `asm-generic/errno-base.h`.
const ENOENT: i32 = 2;
