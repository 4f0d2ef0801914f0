//! Covers: bind mounts of the jail's files over those of the host.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use peername_sys::fs::mounts;

use crate::JailError;

/// The authorities that the program trusts: the interceptor's, and the host's.
#[derive(Clone, Debug)]
pub struct TrustFiles {
    /// The interceptor's certificates (PEM).
    pub authority: Vec<u8>,
    /// The certificates of the interceptor and of the host (PEM).
    pub bundle: Vec<u8>,
    /// The certificates of the interceptor and of the host, as a keystore for Java.
    pub java: Vec<u8>,
    /// The interceptor's certificates (PEM), each with the hash by which OpenSSL looks it up.
    pub hashed: Vec<(String, Vec<u8>)>,
}

/// A file or directory of the host, and the copy that covers it.
#[derive(Debug)]
pub struct Cover {
    pub(crate) original: PathBuf,
    pub(crate) copy: PathBuf,
}

impl Cover {
    pub(super) fn new(original: impl Into<PathBuf>, copy: PathBuf) -> Self {
        Self {
            original: original.into(),
            copy,
        }
    }

    pub(super) fn mount(&self) -> Result<(), JailError> {
        let covered = mounts::bind_recursively_over(&self.original, &self.copy);
        covered.map_err(|source| JailError::cover(&self.original, source))
    }
}

/// Covers a file, unless it does not exist or this user can't reach it: then the program can't either.
pub(super) fn cover_existing(target: &Path, source: &Path) -> Result<(), JailError> {
    match mounts::bind_over(target, source) {
        Err(error) if error.is_permission() && target.symlink_metadata().is_ok() => {
            Err(JailError::cover(target, error))
        }
        Err(error) if error.is_permission() || error.source.kind() == ErrorKind::NotFound => Ok(()),
        covered => covered.map_err(|source| JailError::cover(target, source)),
    }
}
