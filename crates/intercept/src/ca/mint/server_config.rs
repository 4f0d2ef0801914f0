//! The TLS server configuration for clients.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::server::{ResolvesServerCertUsingSni, ServerSessionMemoryCache};
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{Error, ServerConfig};

/// The configuration that all hosts have in common, session tickets and stored sessions included. Hosts can share these,
/// because rustls resumes a session only under the name with which it began. Separate ones would cost 30 KiB for each host.
pub(super) fn base(clock: Arc<dyn TimeProvider>) -> Result<ServerConfig, Error> {
    let mut base = ServerConfig::builder_with_details(Arc::new(default_provider()), clock)
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_no_client_auth()
        // The resolver has no name, so a handshake with the base alone fails.
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    base.ticketer = Ticketer::new()?;
    base.session_storage = ServerSessionMemoryCache::new(MAX_STORED_SESSIONS);
    Ok(base)
}

/// Sessions of TLS 1.2 clients that don't support tickets.
const MAX_STORED_SESSIONS: usize = 1024;
