//! Why the configuration of a check service is refused.

use std::path::PathBuf;

use http::HeaderName;

/// Why the configuration of a check service is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not a URL. The text is not quoted: it may have a password.
    #[error("not a URL; write {forms}")]
    NotAUrl {
        /// The forms of the known protocols.
        forms: String,
    },
    /// A URL of another scheme.
    #[error("a check service of the scheme {scheme:?} is not known; write {forms}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// The forms of the known protocols.
        forms: String,
    },
    /// A URL with credentials.
    #[error("a check URL can't carry a user name or password")]
    UserInfo,
    /// A URL without a port, of a protocol that has no default port.
    #[error("the check URL has no port; write {0}")]
    Port(&'static str),
    /// The protocol does not accept the URL, for this reason.
    #[error("{0}")]
    Url(&'static str),
    /// A body for a protocol that sends none.
    #[error(
        "a forwardAuth service is not sent bodies; leave the body out, or ask over another protocol"
    )]
    Body,
    /// Headers to take from the response, for a protocol whose responses name the headers to change.
    #[error(
        "--check-take: headers to take from the answer are for forwardAuth; services of other protocols and policies name them in the answer"
    )]
    ResponseHeaders,
    /// A header that no response may change.
    #[error(
        "the header {0} can't be taken from the answer: where a request goes, how long it is and what belongs to the connection \
         stays as it was checked"
    )]
    ImmutableHeader(HeaderName),
    /// The files of a policy are not valid; the text has file and line.
    #[error("the policy of --check rego: {0}")]
    Policy(String),
    /// The files for TLS can't be used; the text has the option and the file.
    #[error("{0}")]
    Tls(String),
    /// A service that uses TLS, without trust anchors.
    #[error("a check service with TLS needs trust anchors")]
    NoTrustAnchors,
    /// Nothing is at the path of a Unix socket, and the program could put its own there.
    #[error(
        "--check, the Unix socket {}: {error}; start the service first, or have the socket in a directory that the program's user \
         can't write: elsewhere the program could put its own there", path.display()
    )]
    Socket {
        /// The path.
        path: PathBuf,
        /// The error of open(2).
        error: String,
    },
    /// No service.
    #[error("no check service is named")]
    NoService,
    /// A timeout of zero: every check would fail.
    #[error("the check timeout is zero")]
    ZeroTimeout,
}
