//! What can be wrong with an authority, and what to do about it.

use std::io;
use std::path::{Display, Path, PathBuf};

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is one, and it stays.
    #[error(
        "{path} is there already and stays; `peername ca rotate --ca {}` replaces an authority",
        directory(path)
    )]
    Exists {
        /// Its file.
        path: PathBuf,
    },
    /// The same, but nothing that could be replaced by itself.
    #[error(
        "{path} is there already and stays: {fault}; to make a new one, move it away and run \
         `peername ca init --ca {}` again",
        directory(path)
    )]
    InTheWay {
        /// The file.
        path: PathBuf,
        /// Why it can't be rotated.
        fault: Fault,
    },
    /// There is none.
    #[error(
        "{path}: no authority there; make one with `peername ca init --ca {}`",
        directory(path)
    )]
    Absent {
        /// Where it would be.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{call} {path}: {source}")]
    Io {
        /// Which.
        call: &'static str,
        /// On what.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
    /// Whoever has read the key can be anybody.
    #[error(
        "{path} holds the authority's key, and others may read it (mode {mode:04o}): run `chmod 600 {path}`; \
         if others have accounts here, replace it too: `peername ca rotate --ca {}`",
        directory(path)
    )]
    ReadableByOthers {
        /// The key's file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Whoever can write there can put an authority of their own in its place.
    #[error("others may write {path} (mode {mode:04o}): run `chmod go-w {path}`")]
    WritableByOthers {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The same, for a user.
    #[error(
        "{path} belongs to user {owner}, who can replace it: run `chown {us} {path}`, or as that user"
    )]
    OwnedByAnother {
        /// A file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who we are.
        us: u32,
    },
    /// The file is not an authority that clients accept.
    #[error("{path}: {fault}{}", remedy(path, *fault))]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: Fault,
    },
    /// What was asked for can't be made; for example a name with odd characters.
    #[error("making the authority: {0}")]
    Making(#[from] rcgen::Error),
    /// What was made is not what it should be: a bug of ours.
    #[error("the authority just made: {0}")]
    Made(Fault),
}

/// What is wrong with an authority's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No section `PRIVATE KEY`, or it is cut off.
    #[error(
        "no private key in PEM; an encrypted one must be decrypted first: `openssl pkcs8 -in OLD -out NEW`"
    )]
    NoKey,
    /// A key that is no P-256 key.
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
    /// Key and certificate are not of one pair.
    #[error("key and certificate do not belong together; the issuing certificate comes first")]
    Mismatch,
    /// Another order than issuing certificate, its issuer, and so on.
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
    /// Name constraints of a kind that we can't tell clients' verdict about.
    #[error("the certificate's name constraints are damaged or not contiguous networks")]
    Constraints,
    /// notBefore is ahead, or the clock is behind.
    #[error("the certificate is not valid yet; is the clock right?")]
    NotYetValid,
    /// notAfter has passed.
    #[error("the certificate has expired")]
    Expired,
    /// Of no use to [`super::Authority::rotate`].
    #[error(
        "this authority was not made by `peername ca init`: get its successor where it came from"
    )]
    Foreign,
}

/// The command that mends a fault, where there is one.
fn remedy(path: &Path, fault: Fault) -> String {
    match fault {
        Fault::Expired => format!(
            "; replace it with `peername ca rotate --ca {}` and let clients trust the new one",
            directory(path)
        ),
        _ => String::new(),
    }
}

/// The value of `--ca` that names the authority in this file.
fn directory(path: &Path) -> Display<'_> {
    path.parent().unwrap_or(path).display()
}
