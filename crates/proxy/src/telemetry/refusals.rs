//! Rate-limited warnings for conditions that can refuse every client.
//!
//! A proxy that refuses all of its clients in silence looks healthy: a wrong `--trust`, a balancer that sends no
//! header, a backend that is down. Each such reason is logged through a [`Throttle`] of its own, with what to do about
//! it. Nothing that a peer sent is logged here, only its address, and that of a refused client. A failure that concerns
//! only the client that caused it is logged with `-v`.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::time::SystemTime;

use parking_lot::Mutex;
use peername_observe::admin::events::LastRefusal;
use peername_observe::admin::history::unix_seconds;
use peername_proto::{Invalid, ProtocolGuess};
use peername_server::access::clients::ClientRefusal;
use peername_server::addr::{ClaimedSource, PeerAddr, Target};
use peername_server::header_error::HeaderError;
use peername_sys::Transport;
use peername_sys::throttle::Throttle;

use crate::backend::Backend;
use crate::outcome::{Failure, Outcome, SessionEnd};
use crate::telemetry::{codes, outages};
use crate::udp::drop_reason::DropReason;
use crate::udp::endpoints::DatagramOrigin;

/// Warns of an ended connection or session if its end concerns more than one client. `client`: the claimed source of a trusted
/// peer's header.
pub(crate) fn report(peer: PeerAddr, client: Option<ClaimedSource>, outcome: &Outcome) {
    match outcome {
        Outcome::Failed(failure) => {
            let example = Example::now(peer, client);
            report_failure("connections", Transport::Tcp, example, failure);
        }
        Outcome::SessionEnded(SessionEnd::Unwatched) => {
            warn_ended_session(outcome.label(), peer, outcome);
        }
        Outcome::SessionEnded(SessionEnd::Evicted(reason)) => {
            warn_ended_session(reason.label(), peer, outcome);
        }
        _ => {}
    }
}

/// Warns of a datagram that was dropped on its way to a backend, if the reason concerns more than one client.
pub(crate) fn report_datagram(origin: DatagramOrigin, dropped: &DropReason) {
    let DatagramOrigin { peer, client } = origin;
    if let DropReason::Refused(failure) = dropped {
        let example = Example::now(peer, client);
        report_failure("datagrams", Transport::Udp, example, failure);
    } else if dropped.is_warned() {
        let (reason, advice) = (dropped.reason(), dropped.to_string());
        let example = Example::now(peer, None);
        warn("datagrams dropped", reason, reason, example, &advice);
    }
}

/// Warns of the end of a UDP session, once per interval and condition.
fn warn_ended_session(condition: &'static str, peer: PeerAddr, outcome: &Outcome) {
    let (label, cause) = (outcome.label(), outcome.error().unwrap_or_default());
    let example = Example::now(peer, None);
    warn("UDP sessions ended", condition, label, example, &cause);
}

fn report_failure(what: &str, transport: Transport, example: Example, failure: &Failure) {
    REASONS.lock().entry(failure.reason()).or_default().last = Some(example);
    let backend = |upstream: Target| Backend::new(upstream.0, transport);
    match failure {
        Failure::Connect { upstream, error } => {
            outages::report_failure(backend(*upstream), failure.reason(), error.kind(), error);
        }
        Failure::ConnectTimeout { upstream, after } => {
            let error = format_args!("no answer within {after:?}");
            let kind = ErrorKind::TimedOut;
            outages::report_failure(backend(*upstream), failure.reason(), kind, error);
        }
        Failure::HeaderTimeout { upstream, after } => {
            let error = format_args!("it does not take the outbound header within {after:?}");
            let kind = ErrorKind::Other;
            outages::report_failure(backend(*upstream), failure.reason(), kind, error);
        }
        _ => {
            if let Some(advice) = warning_text(transport, failure) {
                let what = format!("{what} refused");
                let reason = failure.reason();
                warn(&what, reason, reason, example, &advice);
            }
        }
    }
}

/// Logs the warning about an outcome, unless that about the same condition is throttled. The example is in the fields that
/// `connection ended` has, too.
fn warn(
    what: &str,
    condition: &'static str,
    outcome: &'static str,
    example: Example,
    advice: &str,
) {
    let mut reasons = REASONS.lock();
    let suppressed = reasons.entry(condition).or_default().throttle.pass();
    drop(reasons);
    if let Some(suppressed) = suppressed {
        let Example { peer, client, .. } = example;
        tracing::warn!(
            outcome,
            client = client.map(tracing::field::display),
            %peer,
            suppressed,
            "{what}: {outcome}, for example {example}; {advice}"
        );
    }
}

/// The last failure of each reason code.
pub fn last_refusals() -> BTreeMap<String, LastRefusal> {
    let reasons = REASONS.lock();
    let last = reasons.iter().filter_map(|(&reason, state)| {
        let example = state.last?;
        let refusal = LastRefusal {
            at: unix_seconds(example.at),
            example: example.to_string(),
        };
        Some((reason.to_owned(), refusal))
    });
    last.collect()
}

/// The text of the warning about a failure: what is wrong, and what to do. `None` for a failure that gets no warning. A failure
/// without an arm of its own gets one.
fn warning_text(transport: Transport, failure: &Failure) -> Option<String> {
    Some(match failure {
        // Logged as outages.
        Failure::Connect { .. }
        | Failure::ConnectTimeout { .. }
        | Failure::HeaderTimeout { .. } => return None,
        // A reload closes a listener once.
        Failure::NoService => return None,
        Failure::Header(error) => return header_warning_text(transport, error),
        Failure::Source(_)
        | Failure::Client(
            ClientRefusal::NotAllowed
            | ClientRefusal::TlvMissing { .. }
            | ClientRefusal::TlvMismatch { .. },
        ) => with_advice(failure, failure.reason()),
        // The text does not name the destination, which the peer chooses.
        Failure::Destination { refusal, .. } => format!("the header's destination is {refusal}"),
        _ => failure.to_string(),
    })
}

fn header_warning_text(transport: Transport, error: &HeaderError) -> Option<String> {
    Some(match error {
        HeaderError::Invalid {
            invalid: Invalid::V1OnDatagram,
            ..
        } => with_advice(error, error.reason()),
        _ if error.is_empty_connection() => return None,
        HeaderError::Invalid {
            invalid: Invalid::NoHeader { .. },
            guess,
        } => match (transport, guess) {
            (Transport::Tcp, _) => NO_HEADER_ADVICE.to_owned(),
            (Transport::Udp, Some(ProtocolGuess::Spp)) => SPP_ADVICE.to_owned(),
            (Transport::Udp, _) => FIRST_ONLY_ADVICE.to_owned(),
        },
        _ => error.to_string(),
    })
}

fn with_advice(error: impl Display, reason: &str) -> String {
    let advice = codes::advise(reason).unwrap_or_default();
    format!("{error}. {advice}")
}

/// What is known of a reason code, or of another condition that is warned of.
#[derive(Default)]
struct ReasonState {
    /// Of its own, so that a condition that repeats does not suppress the warning about another.
    throttle: Throttle,
    last: Option<Example>,
}

/// A connection or datagram that was refused.
#[derive(Clone, Copy)]
struct Example {
    at: SystemTime,
    peer: PeerAddr,
    client: Option<ClaimedSource>,
}

impl Example {
    fn now(peer: PeerAddr, client: Option<ClaimedSource>) -> Self {
        let at = SystemTime::now();
        Self { at, peer, client }
    }
}

impl Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer.ip();
        match self.client {
            Some(client) => write!(f, "client {} through {peer}", client.0.ip()),
            None => write!(f, "from {peer}"),
        }
    }
}

/// By reason code or condition.
static REASONS: Mutex<BTreeMap<&'static str, ReasonState>> = Mutex::new(BTreeMap::new());
const NO_HEADER_ADVICE: &str = "the data does not begin with a PROXY protocol header; turn it on at the \
    balancer, or is this a client that bypasses it? (`-v` shows each)";
const FIRST_ONLY_ADVICE: &str = "the datagram does not begin with a PROXY protocol header; turn it on at the balancer, and if \
    that sends one on the first datagram of a flow only, use --udp-header first";
const SPP_ADVICE: &str = "the datagram begins with a Simple Proxy Protocol header, as Cloudflare Spectrum sends it: use \
    --udp-header spp";

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::time::Duration;

    use peername_proto::{HeaderRefusal, SourceRefusal, WriteError};
    use peername_sys::SyscallError;

    use super::*;
    use crate::outcome::Fault;
    use crate::policy::destination::DestinationRefusal;

    #[test]
    fn conditions_that_can_refuse_all_clients_are_logged() {
        let addr = SocketAddr::from(([192, 0, 2, 1], 80));
        let error = || io::Error::from(ErrorKind::ConnectionReset);
        let failed = || SyscallError {
            call: "bind(2)",
            source: error(),
        };
        let invalid = |invalid| HeaderError::Invalid {
            invalid,
            guess: None,
        };
        let timeout = |received| HeaderError::Timeout {
            after: Duration::from_secs(3),
            received,
        };
        let logged = [
            Failure::Untrusted,
            HeaderError::TooManyPending.into(),
            timeout(0).into(),
            timeout(5).into(),
            HeaderError::Truncated { received: 5 }.into(),
            invalid(Invalid::NoHeader { offset: 0 }).into(),
            invalid(Invalid::V2Version(3)).into(),
            HeaderError::OtherTransport.into(),
            HeaderError::TooLong { len: 9, max: 8 }.into(),
            HeaderError::TooManyTlvs { max: 8 }.into(),
            Failure::Source(SourceRefusal::Loopback),
            Failure::Destination {
                destination: addr,
                refusal: DestinationRefusal::NotListed,
            },
            HeaderError::Refused(HeaderRefusal::WithoutClient).into(),
            invalid(Invalid::V1OnDatagram).into(),
            Failure::Client(ClientRefusal::NotAllowed),
            Failure::Client(ClientRefusal::Denied {
                by: addr.ip().into(),
            }),
            Failure::Client(ClientRefusal::TlvMissing { kind: 1 }),
            Failure::Client(ClientRefusal::TlvMismatch { kind: 1 }),
            Failure::TooManyConnections,
            Failure::NoTarget { client: addr.ip() },
            Failure::ReplyPath {
                backend: addr.into(),
                mark: None,
            },
            Failure::OutboundHeader(WriteError::TooLong(70_000)),
            Failure::Local(failed()),
            Failure::PortTaken(failed()),
            Failure::SourceRewritten {
                wanted: addr,
                got: addr,
            },
            Failure::SourceTranslated {
                client: addr,
                target: addr,
            },
        ];
        for failure in &logged {
            assert!(
                warning_text(Transport::Tcp, failure).is_some(),
                "{failure:?}"
            );
        }
        let upstream = Target(addr);
        let outages = [
            Failure::Connect {
                upstream,
                error: error(),
            },
            Failure::ConnectTimeout {
                upstream,
                after: Duration::from_secs(3),
            },
            Failure::HeaderTimeout {
                upstream,
                after: Duration::from_secs(3),
            },
        ];
        let silent = [
            HeaderError::Truncated { received: 0 }.into(),
            HeaderError::Read(error()).into(),
            Failure::NoService,
        ];
        for failure in outages.iter().chain(&silent) {
            assert!(
                warning_text(Transport::Tcp, failure).is_none(),
                "{failure:?}"
            );
        }
        assert!(
            outages
                .iter()
                .all(|outage| outage.fault() == Fault::Upstream)
        );
    }
}
