//! Programs that accept one certificate only, and ours never (`--auto-passthrough`).
//!
//! A client that says three times in a row that it does not trust us for a host gets that host unopened from
//! then on, for a day. Only what it says counts, an alert about the certificate; a connection that merely
//! breaks does not. Anybody can say so, which is why this does not go together with a check.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use moka::ops::compute::Op;
use moka::sync::Cache;
use rustls::{AlertDescription, Error};

use crate::host::Host;

/// Who has refused us for whom.
#[derive(Debug)]
pub struct Pinned {
    refusals: Cache<Who, u8>,
    left_alone: Cache<Who, ()>,
}

type Who = (IpAddr, Host);

impl Default for Pinned {
    fn default() -> Self {
        Self {
            refusals: kept(PATIENCE),
            left_alone: kept(DAY),
        }
    }
}

impl Pinned {
    /// Whether this client gets this host unopened.
    pub(crate) fn includes(&self, client: IpAddr, host: &Host) -> bool {
        self.left_alone.contains_key(&(client, host.clone()))
    }

    /// The client has taken our certificate: it is not pinned.
    pub(crate) fn accepted(&self, client: IpAddr, host: &Host) {
        self.refusals.invalidate(&(client, host.clone()));
    }

    /// A handshake has failed. Says whether the next one is left alone for that.
    pub(crate) fn failed(&self, client: IpAddr, host: &Host, error: &io::Error) -> bool {
        if !is_about_the_certificate(error) {
            return false;
        }
        let who = (client, host.clone());
        let mut enough = false;
        self.refusals.entry(who.clone()).and_compute_with(|before| {
            let count = before.map_or(0, |entry| entry.into_value()) + 1;
            enough = count >= ENOUGH;
            if enough { Op::Remove } else { Op::Put(count) }
        });
        if enough {
            self.left_alone.insert(who, ());
        }
        enough
    }
}

fn kept<T: Clone + Send + Sync + 'static>(time: Duration) -> Cache<Who, T> {
    Cache::builder()
        .max_capacity(MOST)
        .time_to_live(time)
        .build()
}

/// RFC 8446, section 6.2. An alert of another kind, `ech_required` among them, says nothing about trust.
fn is_about_the_certificate(error: &io::Error) -> bool {
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

const ENOUGH: u8 = 3;
/// From one refusal to the next.
const PATIENCE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Pairs of client and host.
const MOST: u64 = 16_384;

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
    fn three_refusals_in_a_row_are_enough() {
        let (pinned, host) = (Pinned::default(), Host::parse("a.test").unwrap());
        let client = IpAddr::from([192, 0, 2, 1]);
        let refuse = || pinned.failed(client, &host, &alert(AlertDescription::UnknownCA));
        assert!(!refuse() && !refuse());
        pinned.accepted(client, &host);
        assert!(!refuse() && !refuse() && !pinned.includes(client, &host));
        let unrelated = alert(AlertDescription::HandshakeFailure);
        assert!(!pinned.failed(client, &host, &unrelated));
        assert!(refuse() && pinned.includes(client, &host));
        assert!(!pinned.includes(IpAddr::from([192, 0, 2, 2]), &host));
        assert!(!pinned.includes(client, &Host::parse("b.test").unwrap()));
    }
}
