//! The options that decide which valid headers and which claimed sources are accepted.

use peername_proto::{HeaderPolicy, SourcePolicy};

/// Which valid headers are accepted, by `proxy` and `exec`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Refuse headers that are unambiguous, but not as the specification has them: families that differ, a space before
    /// CRLF, source port 0
    #[arg(long)]
    strict_header: bool,
    /// Headers without a client (LOCAL, UNKNOWN), as health checks have them
    #[arg(long, value_name = "WHAT", default_value = "serve")]
    without_client: WithoutClient,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum WithoutClient {
    /// Serve them, from an address of this host
    #[default]
    Serve,
    /// Refuse them
    Refuse,
}

/// Which claimed sources `proxy` accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Sources {
    /// Refuse special, loopback and own addresses
    Strict,
    /// Refuse special addresses only
    AllowLocal,
    /// As `strict`, but accept 240.0.0.0/4
    AllowReserved,
}

impl From<Sources> for SourcePolicy {
    fn from(sources: Sources) -> Self {
        match sources {
            Sources::Strict => Self::Strict,
            Sources::AllowLocal => Self::AllowLocal,
            Sources::AllowReserved => Self::AllowReserved,
        }
    }
}

impl Args {
    /// The policy by these options.
    pub(crate) fn policy(&self) -> HeaderPolicy {
        HeaderPolicy {
            strict: self.strict_header,
            require_client: self.without_client == WithoutClient::Refuse,
        }
    }
}
