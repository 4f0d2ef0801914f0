//! Why a certificate was not made.

use crate::host::Host;

/// Why a client gets no certificate.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MintError {
    /// The client is over its rate limit, and would have to wait too long.
    #[error(
        "the client opens connections to too many new hosts at once; --certificates-per-client raises the limit"
    )]
    TooMany,
    /// Clients would refuse it: the name constraints of the authority exclude the host.
    #[error("the authority may not speak for {0}, by the name constraints of its certificate")]
    NotPermitted(Host),
    /// The authority has expired since it was opened, or the clock is wrong.
    #[error("the authority's certificate is not valid now; see `peername ca show`, and the clock")]
    Authority,
    /// The wall clock can't be read.
    #[error("the wall clock can't be read")]
    Clock,
    /// Making the certificate failed.
    #[error("making a certificate: {0}")]
    Making(#[from] rcgen::Error),
    /// The TLS library did not take the key or the configuration.
    #[error("making a certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The thread that made the RSA key has panicked.
    #[error("making the RSA key: the thread has panicked")]
    Thread,
}
