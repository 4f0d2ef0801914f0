//! What refuses everybody, logged at the ordinary level.
//!
//! A proxy that refuses all of its clients in silence looks healthy: a wrong `--trust`, a balancer that sends no
//! header, a backend that is down. Each such reason is logged once in ten seconds, with what to do about it. Nothing that
//! a peer sent is logged here, only its address. What a client can only do to itself is left to `-v`.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use peername_proto::Invalid;
use peername_relay::End;

use crate::addr::PeerAddr;
use crate::outages::{self, Backend};
use crate::outcome::{Failure, Outcome, Over};
use crate::throttle::Throttle;
use crate::udp::DropReason;

/// A connection ended like this.
pub(crate) fn report(peer: PeerAddr, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(failure) => report_failure("connections", Backend::Tcp, peer, failure),
        Outcome::Relayed(End::Lost) | Outcome::Over(Over::Unwatched) => {
            let error = outcome.error().unwrap_or_default();
            warn("connections cut", &LOCAL, outcome.label(), peer, &error);
        }
        Outcome::Over(Over::Evicted) => {
            let label = outcome.label();
            warn("UDP sessions ended", &EVICTED, label, peer, EVICTED_ADVICE);
        }
        Outcome::Relayed(End::Finished(_) | End::Reset(_) | End::Idle)
        | Outcome::Over(Over::Idle | Over::Unanswered | Over::SocketDestroyed | Over::Stopped)
        | Outcome::Cut => {}
    }
}

/// A datagram from this peer was dropped on its way to a backend.
pub(crate) fn report_datagram(peer: PeerAddr, dropped: &DropReason) {
    let (throttle, advice) = match dropped {
        DropReason::Refused(failure) => {
            return report_failure("datagrams", Backend::Udp, peer, failure);
        }
        DropReason::StreamTransport => (&MALFORMED, dropped.to_string()),
        DropReason::Unsendable(_) => (&LOCAL, dropped.to_string()),
        DropReason::HeaderMissing => (&REPLIES, dropped.to_string()),
        // Reported of the backend, and of the session that made room.
        DropReason::Unreachable(_) | DropReason::Evicted => return,
        DropReason::HeaderOnly
        | DropReason::Truncated
        | DropReason::Stopping
        | DropReason::Stranger
        | DropReason::FlowChanged
        | DropReason::SendBufferFull
        | DropReason::TooLarge
        | DropReason::SocketDestroyed(_) => return,
    };
    warn(
        "datagrams dropped",
        throttle,
        dropped.reason(),
        peer,
        &advice,
    );
}

fn report_failure(
    what: &str,
    backend: fn(SocketAddr) -> Backend,
    peer: PeerAddr,
    failure: &Failure,
) {
    match failure {
        Failure::Connect { upstream, error } => {
            outages::failed(backend(upstream.0), error.kind(), error);
        }
        Failure::ConnectTimeout { upstream, after } => {
            let silence = format_args!("no answer within {after:?}");
            outages::failed(backend(upstream.0), ErrorKind::TimedOut, silence);
        }
        _ => {
            if let Some((throttle, advice)) = mistake(failure) {
                let what = format!("{what} refused");
                warn(&what, throttle, failure.reason(), peer, &advice);
            }
        }
    }
}

fn warn(what: &str, throttle: &Throttle, reason: &str, peer: PeerAddr, advice: &str) {
    if let Some(suppressed) = throttle.pass() {
        let peer = peer.ip();
        tracing::warn!(suppressed, "{what}: {reason}, such as of {peer}; {advice}");
    }
}

/// What to do, and when it was last logged. Without a wildcard: who adds a failure decides here whether it may be
/// silent.
fn mistake(failure: &Failure) -> Option<(&'static Throttle, String)> {
    let (throttle, advice) = match failure {
        // Logged as outages.
        Failure::Connect { .. } | Failure::ConnectTimeout { .. } => return None,
        // A health check connects and closes, or resets; a reload closes a listener once.
        Failure::HeaderTruncated { received: 0 } | Failure::Downstream(_) | Failure::NoService => {
            return None;
        }
        Failure::Untrusted => (&UNTRUSTED, failure.to_string()),
        Failure::HeaderInvalid {
            invalid: Invalid::NoHeader { .. },
            ..
        } => (&NO_HEADER, NO_HEADER_ADVICE.to_owned()),
        Failure::HeaderTimeout { received: 0, .. } => (&SILENT, failure.to_string()),
        Failure::HeaderTimeout { .. }
        | Failure::HeaderTruncated { .. }
        | Failure::HeaderInvalid { .. }
        | Failure::OtherTransport
        | Failure::HeaderTooLong { .. }
        | Failure::TooManyTlvs { .. } => (&MALFORMED, failure.to_string()),
        Failure::TooManyPending => (&PENDING, failure.to_string()),
        Failure::Source(_) => (&SOURCE, failure.to_string()),
        // The address itself is the peer's choice.
        Failure::Destination { refused, .. } => (
            &DESTINATION,
            format!("the header's destination is {refused}"),
        ),
        Failure::ReplyPath => (&REPLY_PATH, failure.to_string()),
        Failure::PortTaken(_) => (&PORT_TAKEN, failure.to_string()),
        Failure::Local(_) | Failure::SourceRewritten { .. } | Failure::Header(_) => {
            (&LOCAL, failure.to_string())
        }
    };
    Some((throttle, advice))
}

/// Rare enough that strangers cannot fill a disk.
const EVERY: Duration = Duration::from_secs(10);
static UNTRUSTED: Throttle = Throttle::new(EVERY);
static NO_HEADER: Throttle = Throttle::new(EVERY);
static SILENT: Throttle = Throttle::new(EVERY);
static MALFORMED: Throttle = Throttle::new(EVERY);
static PENDING: Throttle = Throttle::new(EVERY);
static SOURCE: Throttle = Throttle::new(EVERY);
static DESTINATION: Throttle = Throttle::new(EVERY);
static REPLY_PATH: Throttle = Throttle::new(EVERY);
static PORT_TAKEN: Throttle = Throttle::new(EVERY);
static LOCAL: Throttle = Throttle::new(EVERY);
static EVICTED: Throttle = Throttle::new(EVERY);
static REPLIES: Throttle = Throttle::new(EVERY);
const NO_HEADER_ADVICE: &str = "what comes does not begin with a PROXY protocol header; turn it on at the \
    balancer, or is this a client that bypasses it? (`-v` shows each)";
const EVICTED_ADVICE: &str = "each new one takes the place of one that is open; raise --max-sessions, or \
    lower --close-after";

#[cfg(test)]
mod tests {
    use std::io;

    use peername_proto::WriteError;
    use peername_sys::SyscallError;

    use super::*;
    use crate::addr::Target;
    use crate::outcome::Fault;
    use crate::{destination, source};

    /// The promise: a condition that can refuse every client is logged without `-v`.
    #[test]
    fn only_what_befalls_a_healthy_set_up_is_silent() {
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        let error = || io::Error::from(ErrorKind::ConnectionReset);
        let failed = || SyscallError {
            call: "bind(2)",
            source: error(),
        };
        let invalid = |invalid| Failure::HeaderInvalid {
            invalid,
            guess_protocol: None,
        };
        let timeout = |received| Failure::HeaderTimeout {
            after: EVERY,
            received,
        };
        let logged = [
            Failure::Untrusted,
            Failure::TooManyPending,
            timeout(0),
            timeout(5),
            Failure::HeaderTruncated { received: 5 },
            invalid(Invalid::NoHeader { offset: 0 }),
            invalid(Invalid::V2Version(3)),
            Failure::OtherTransport,
            Failure::HeaderTooLong { len: 9, max: 8 },
            Failure::TooManyTlvs { max: 8 },
            Failure::Source(source::Refused::Loopback),
            Failure::Destination {
                asked: addr,
                refused: destination::Refused::NotListed,
            },
            Failure::ReplyPath,
            Failure::Header(WriteError::TooLong(70_000)),
            Failure::Local(failed()),
            Failure::PortTaken(failed()),
            Failure::SourceRewritten {
                wanted: addr,
                got: addr,
            },
        ];
        for failure in &logged {
            assert!(mistake(failure).is_some(), "{failure:?}");
        }
        let upstream = Target(addr);
        let outages = [
            Failure::Connect {
                upstream,
                error: error(),
            },
            Failure::ConnectTimeout {
                upstream,
                after: EVERY,
            },
        ];
        let silent = [
            Failure::HeaderTruncated { received: 0 },
            Failure::Downstream(error()),
            Failure::NoService,
        ];
        for failure in outages.iter().chain(&silent) {
            assert!(mistake(failure).is_none(), "{failure:?}");
        }
        assert!(
            outages
                .iter()
                .all(|outage| outage.fault() == Fault::Upstream)
        );
    }
}
