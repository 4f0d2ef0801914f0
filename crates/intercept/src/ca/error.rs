//! Errors and defects of an authority, with what to do about them.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use peername_observe::shell::quote;

/// Why there is no usable authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaError {
    /// There is an authority already, which is never overwritten.
    #[error(
        "{path} is there already and stays; `peername ca rotate --ca {}` replaces an authority",
        directory(path)
    )]
    Exists {
        /// Its file.
        path: PathBuf,
    },
    /// There is a file already, which can't be rotated.
    #[error(
        "{path} is there already and stays: {defect}; to make a new one, move it away and run \
         `peername ca init --ca {}` again",
        directory(path)
    )]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// The defect for which it can't be rotated.
        defect: AuthorityDefect,
    },
    /// There is no authority.
    #[error(
        "{path}: no authority there; make one with `peername ca init --ca {}`",
        directory(path)
    )]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// The directory is another kind of file.
    #[error("--ca {path}: a file, not a directory; use another path")]
    NotADirectory {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{call} {path}: {source}")]
    Io {
        /// The call.
        call: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// Other users may have read the key, with which they can impersonate any server to clients.
    #[error(
        "{path} holds the authority's key, and others may read it (mode {mode:04o}): run `chmod 600 {}`; \
         if others have accounts here, replace it too: `peername ca rotate --ca {}`",
        quote(path),
        directory(path)
    )]
    ReadableByOthers {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Other users can replace the authority by one of their own.
    #[error(
        "others may write {path} (mode {mode:04o}): run `chmod go-w {}`",
        quote(path)
    )]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Others may write a directory that is not for an authority alone, and has to stay as it is: /tmp.
    #[error(
        "--ca {}: a directory that others may write; name one of your own: --ca {}",
        quote(path),
        quote(&path.join("ca"))
    )]
    Shared {
        /// The directory.
        path: PathBuf,
    },
    /// Another user can replace the authority.
    #[error(
        "{path} belongs to user {owner}, who can replace it: run this command as that user (a service's: docs/service.md), or, if it \
         is yours, `chown {us} {}`",
        quote(path)
    )]
    OwnedByAnother {
        /// A file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        us: u32,
    },
    /// Clients would not accept the authority in the file.
    #[error("{path}: {defect}{}", remedy(path, *defect))]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        defect: AuthorityDefect,
    },
    /// A certificate with these options can't be made, for example because of odd characters in the name.
    #[error("making the authority: {0}")]
    Making(#[from] rcgen::Error),
    /// The authority just made fails its own checks: a bug in peername.
    #[error("the authority just made: {0}")]
    Made(AuthorityDefect),
}

impl CaError {
    /// Whether the text says what to do.
    #[must_use]
    pub fn has_remedy(&self) -> bool {
        match self {
            Self::Exists { .. }
            | Self::InTheWay { .. }
            | Self::Absent { .. }
            | Self::NotADirectory { .. }
            | Self::ReadableByOthers { .. }
            | Self::WritableByOthers { .. }
            | Self::Shared { .. }
            | Self::OwnedByAnother { .. } => true,
            Self::Unusable { defect, .. } => matches!(
                defect,
                AuthorityDefect::NoKey
                    | AuthorityDefect::Encrypted
                    | AuthorityDefect::NotP256
                    | AuthorityDefect::Name
                    | AuthorityDefect::Expired
                    | AuthorityDefect::Foreign
            ),
            Self::Io { .. } | Self::Making(_) | Self::Made(_) => false,
        }
    }
}

/// What is wrong with an authority's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityDefect {
    /// No section `PRIVATE KEY`, or it is cut off.
    #[error("no private key in PEM: the file is empty or damaged, or has a certificate only")]
    NoKey,
    /// A key with a password.
    #[error("the private key is encrypted")]
    Encrypted,
    /// A key of another type than P-256.
    #[error(
        "not a P-256 key; RSA and others cost far more for each new host: `openssl ecparam -genkey -name prime256v1`"
    )]
    NotP256,
    /// No section `CERTIFICATE`.
    #[error("no certificate in PEM behind the key")]
    NoCertificate,
    /// Not PEM, not DER, or not a certificate.
    #[error("a certificate in it is damaged")]
    Malformed,
    /// Key and certificate do not belong together.
    #[error("key and certificate do not belong together; the issuing certificate comes first")]
    Mismatch,
    /// The certificates are not in order: the issuing one, its issuer's, and so on.
    #[error("the certificates are not in order: each must be followed by its issuer")]
    Order,
    /// basicConstraints or keyUsage do not let it issue.
    #[error("the certificate may not issue others (basicConstraints CA, keyUsage keyCertSign)")]
    NotAnAuthority,
    /// No subjectKeyIdentifier, which leaves have to repeat.
    #[error(
        "the certificate has no subject key identifier; strict clients ask for one (RFC 5280, 4.2.1.2)"
    )]
    NoKeyId,
    /// A subject that rcgen can't write the same way, for instance with two units.
    #[error(
        "the certificate's subject has a repeated part or one of several values: use a simpler name"
    )]
    Name,
    /// Name constraints with an unknown effect on clients.
    #[error("the certificate's name constraints are damaged or not contiguous networks")]
    Constraints,
    /// notBefore is in the future, or the clock is behind.
    #[error("the certificate is not valid yet; is the clock right?")]
    NotYetValid,
    /// notAfter has passed.
    #[error("the certificate has expired")]
    Expired,
    /// [`super::Authority::rotate`] can't replace it.
    #[error(
        "this authority was not made by `peername ca init`: get its successor where it came from"
    )]
    Foreign,
}

/// The command that repairs a defect, where there is one.
fn remedy(path: &Path, defect: AuthorityDefect) -> String {
    match defect {
        AuthorityDefect::Expired => format!(
            "; replace it with `peername ca rotate --ca {}` and let clients trust the new one",
            directory(path)
        ),
        AuthorityDefect::NoKey => format!(
            "; restore it, or move it away and make a new one: `peername ca init --ca {}`",
            directory(path)
        ),
        AuthorityDefect::Encrypted => {
            let (decrypted, file) = (path.with_extension("decrypted"), quote(path));
            let decrypted = quote(&decrypted);
            // OpenSSL writes the key alone, to a file of mode 0600.
            format!(
                "; decrypt it: `openssl pkey -in {file} -out {decrypted} && sed -n '/BEGIN CERT/,/END CERT/p' {file} \
                 >>{decrypted} && chown --reference={file} {decrypted} && chmod --reference={file} {decrypted} && \
                 mv {decrypted} {file}`"
            )
        }
        _ => String::new(),
    }
}

/// The directory to give as `--ca`.
fn directory(path: &Path) -> Cow<'_, str> {
    quote(path.parent().unwrap_or(path))
}
