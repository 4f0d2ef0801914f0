//! Clients with pinned certificates, which never accept the proxy's (`--auto-passthrough`).
//!
//! After a client has refused the proxy's certificate for a host three times in a row, its TLS with this host is passed through
//! for a day. Only an alert about the certificate counts as a refusal, not a connection that merely breaks. Any client can send
//! such alerts to avoid a check, so this can't be combined with a check.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use moka::ops::compute::Op;
use moka::sync::Cache;
use rustls::{AlertDescription, Error};

use crate::host::Host;

/// The clients that have refused the proxy's certificate, by host. Clones share them.
#[derive(Clone, Debug)]
pub struct PinnedClients {
    refusals: Cache<ClientAndHost, u8>,
    passed_through: Cache<ClientAndHost, ()>,
}

type ClientAndHost = (IpAddr, Host);

impl Default for PinnedClients {
    fn default() -> Self {
        Self {
            refusals: expiring_cache(REFUSAL_WINDOW),
            passed_through: expiring_cache(PASSTHROUGH_LIFETIME),
        }
    }
}

impl PinnedClients {
    /// Whether this client's TLS with this host is passed through.
    pub(crate) fn includes(&self, client: IpAddr, host: &Host) -> bool {
        self.passed_through.contains_key(&(client, host.clone()))
    }

    /// Records that the client has accepted the proxy's certificate, and therefore does not pin another one.
    pub(crate) fn record_accepted(&self, client: IpAddr, host: &Host) {
        self.refusals.invalidate(&(client, host.clone()));
    }

    /// Records a failed handshake. Returns whether the next handshake is passed through because of this one.
    pub(crate) fn record_failed(&self, client: IpAddr, host: &Host, error: &io::Error) -> bool {
        if !is_certificate_alert(error) {
            return false;
        }
        let key = (client, host.clone());
        let mut is_pinned = false;
        self.refusals.entry(key.clone()).and_compute_with(|before| {
            let count = before.map_or(0, |entry| entry.into_value()) + 1;
            is_pinned = count >= MAX_REFUSALS;
            if is_pinned {
                Op::Remove
            } else {
                Op::Put(count)
            }
        });
        if is_pinned {
            self.passed_through.insert(key, ());
        }
        is_pinned
    }
}

fn expiring_cache<T: Clone + Send + Sync + 'static>(lifetime: Duration) -> Cache<ClientAndHost, T> {
    Cache::builder()
        .max_capacity(MAX_PAIRS)
        .time_to_live(lifetime)
        .build()
}

/// Whether the client sent an alert about the certificate (RFC 8446, section 6.2). Other alerts, such as `ech_required`,
/// say nothing about trust.
fn is_certificate_alert(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(
        inner,
        Some(Error::AlertReceived(
            AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
        ))
    )
}

const MAX_REFUSALS: u8 = 3;
/// The longest time between two refusals that count as consecutive.
const REFUSAL_WINDOW: Duration = Duration::from_secs(60);
const PASSTHROUGH_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);
/// The maximum number of pairs of client and host.
const MAX_PAIRS: u64 = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(description: AlertDescription) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            Error::AlertReceived(description),
        )
    }

    #[test]
    fn host_is_passed_through_after_three_consecutive_refusals() {
        let (pinned, host) = (PinnedClients::default(), Host::parse("a.test").unwrap());
        let client = IpAddr::from([192, 0, 2, 1]);
        let refuse = || pinned.record_failed(client, &host, &alert(AlertDescription::UnknownCA));
        assert!(!refuse() && !refuse());
        pinned.record_accepted(client, &host);
        assert!(!refuse() && !refuse() && !pinned.includes(client, &host));
        let unrelated = alert(AlertDescription::HandshakeFailure);
        assert!(!pinned.record_failed(client, &host, &unrelated));
        assert!(refuse() && pinned.includes(client, &host));
        assert!(!pinned.includes(IpAddr::from([192, 0, 2, 2]), &host));
        assert!(!pinned.includes(client, &Host::parse("b.test").unwrap()));
    }
}
