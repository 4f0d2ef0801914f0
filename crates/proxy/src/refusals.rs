//! Refusals that the set-up is to blame for, told at the ordinary log level.
//!
//! A wrong `--trust` or a balancer that sends no header refuses everybody, and a proxy that keeps silent
//! about it looks healthy. A bad client of a sound proxy is not told of here, and nothing that a peer
//! sent is: only its address.

use std::time::Duration;

use peername_proto::Invalid;

use crate::addr::PeerAddr;
use crate::outcome::Failure;
use crate::throttle::Throttle;

/// Says that `what` (connections, datagrams) of this peer are refused and why, if the operator can mend
/// it; once in ten seconds for each reason.
pub(crate) fn tell(what: &str, peer: PeerAddr, failure: &Failure) {
    let Some((throttle, advice)) = mistake(failure) else {
        return;
    };
    if let Some(suppressed) = throttle.pass() {
        let (reason, peer) = (failure.reason(), peer.0.ip());
        tracing::warn!(
            suppressed,
            "{what} refused: {reason}, such as of {peer}; {advice}"
        );
    }
}

/// What to do, and when it was last said.
fn mistake(failure: &Failure) -> Option<(&'static Throttle, String)> {
    let (throttle, advice) = match failure {
        Failure::Untrusted => (&UNTRUSTED, failure.to_string()),
        Failure::HeaderInvalid {
            invalid: Invalid::NoHeader { .. },
            ..
        } => (&NO_HEADER, NO_HEADER_ADVICE.to_owned()),
        Failure::HeaderTimeout { received: 0, .. } => (&SILENT, failure.to_string()),
        Failure::ReplyPath => (&REPLY_PATH, failure.to_string()),
        Failure::Local(_) | Failure::SourceRewritten { .. } => (&LOCAL, failure.to_string()),
        _ => return None,
    };
    Some((throttle, advice))
}

/// Rare enough that strangers cannot fill a disk.
const EVERY: Duration = Duration::from_secs(10);
static UNTRUSTED: Throttle = Throttle::new(EVERY);
static NO_HEADER: Throttle = Throttle::new(EVERY);
static SILENT: Throttle = Throttle::new(EVERY);
static REPLY_PATH: Throttle = Throttle::new(EVERY);
static LOCAL: Throttle = Throttle::new(EVERY);
const NO_HEADER_ADVICE: &str = "what comes does not begin with a PROXY protocol header; turn it on at the \
    balancer, or is this a client that bypasses it? (`-v` shows each)";
