//! The reasons for which `exec` refuses connections: their names in metrics, what to do about them, and the lines of the log.

use std::fmt::{self, Display, Formatter};

use peername_identity::{Counter, Refusal, as_socket_family};

/// The metric of `proxy` that would count a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The program has the connection.
    Served,
    /// The connection had no valid header in time.
    HeaderError,
    /// A rule refused the connection.
    Denied,
    /// The connection is counted again once its outcome is known.
    Undecided,
}

/// The class of a counter, and the outcome by the name that `proxy` has for it.
pub fn classify(counter: Counter) -> (Class, &'static str) {
    match counter {
        Counter::Accepted => (Class::Served, "handed_over"),
        Counter::PassedThrough => (Class::Served, "passed_through"),
        Counter::Untrusted => (Class::Denied, "untrusted_peer"),
        Counter::NotAHeader => (Class::HeaderError, "no_header"),
        Counter::HeaderRefused => (Class::HeaderError, "header_refused"),
        Counter::Closed => (Class::HeaderError, "closed_without_header"),
        Counter::Late => (Class::HeaderError, "header_timeout"),
        Counter::Source => (Class::Denied, "source_refused"),
        Counter::ClientDenied => (Class::Denied, "client_denied"),
        Counter::ClientNotAllowed => (Class::Denied, "client_not_allowed"),
        Counter::TlvMissing => (Class::Denied, "tlv_missing"),
        Counter::TlvMismatch => (Class::Denied, "tlv_mismatch"),
        Counter::Full => (Class::Denied, "table_full"),
        Counter::WaiterUnavailable => (Class::Denied, "too_many_pending"),
        Counter::WaiterUnreachable => (Class::Denied, "supervisor_unreachable"),
        Counter::KeyInUse => (Class::Denied, "socket_key_in_use"),
        Counter::NoKey => (Class::Denied, "multipath_unlisted"),
        Counter::ListenerUnreachable => (Class::Denied, "listener_unreachable"),
        Counter::ListenerClosed => (Class::Denied, "listener_closed"),
        Counter::SupervisorStopped => (Class::Denied, "supervisor_stopped"),
        Counter::Parked => (Class::Undecided, "parked"),
    }
}

/// What an operator can do about a reason; `None` if there is nothing to do, or the same as in `proxy`.
pub fn advice(reason: Counter) -> Option<&'static str> {
    Some(match reason {
        Counter::HeaderRefused => {
            "The header names no IP address of a client, or --strict-header or --without-client refuses it: capture one and let `peername decode` explain it."
        }
        Counter::Source => {
            "The header names a client that no remote client can be: have the balancer accept no PROXY headers (--source-policy)."
        }
        Counter::Full => {
            "As many connections have a client as the table has slots: raise --max-connections."
        }
        Counter::WaiterUnavailable => {
            "Many connections send no header. If they are clients of yours, raise the limit of open files."
        }
        Counter::WaiterUnreachable => {
            "The supervisor reads slow headers, and could not be asked to: it has exited, or there is no descriptor left. Restart the program, or raise the limit of open files."
        }
        Counter::KeyInUse => {
            "The kernel gave two open connections one number: let the server listen by TCP, not by MPTCP."
        }
        Counter::NoKey => {
            "The kernel lists no MPTCP connections: allow AF_NETLINK (RestrictAddressFamilies= in a unit), or let the server listen by TCP."
        }
        Counter::ListenerUnreachable => {
            "This host may not connect to the server: let the firewall accept connections over lo. A server that is bound to a device is reached at the device's own addresses only; one that listens on IPv6 only, AF_INET6 in its unit's RestrictAddressFamilies=."
        }
        Counter::ListenerClosed => {
            "The program closed its listener before it took the connection, as at its end; or it listens in another network namespace than it was started in."
        }
        Counter::SupervisorStopped => {
            "The agent was reloaded, or ended, before the program took the connection. Balancers that send the header at once lose none."
        }
        _ => return None,
    })
}

/// Whether the reason can lie in the configuration. Port scans, and health checks that only connect, close before a header was
/// complete; a program that stops closes its listener; a reload ends supervisors.
pub(crate) fn concerns_configuration(reason: Counter) -> bool {
    use Counter::{Closed, ListenerClosed, SupervisorStopped};
    !matches!(reason, Closed | ListenerClosed | SupervisorStopped)
}

/// A refusal, displayed with its cause and the remedy.
pub(crate) struct Explained(pub(crate) Refusal);

impl Explained {
    /// The line for a client that is shown by a stand-in; `is_first`: with the remedy.
    pub(crate) fn stand_in_line(&self, is_first: bool) -> String {
        let Refusal { peer, port, .. } = self.0;
        let shown = as_socket_family(peer, false);
        let remedy = if is_first {
            "; to show clients as they are, let the balancer connect to an IPv6 address of the server, which has to listen on it"
        } else {
            ""
        };
        format!(
            "peername: the server's IPv4 socket, port {port}, shows the client {peer} as {shown}: {} stands for its /64{remedy}",
            shown.ip()
        )
    }

    /// The line for so many refusals of this reason.
    pub(crate) fn line(&self, refusals: u64) -> String {
        match refusals {
            0 | 1 => format!("peername: refused a connection {self}"),
            _ => format!("peername: refused {refusals} connections, one of them {self}"),
        }
    }
}

impl Display for Explained {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Refusal { reason, peer, port } = self.0;
        let ip = peer.ip().to_canonical();
        let kind = if reason.is_client_refusal() {
            "client "
        } else {
            ""
        };
        write!(f, "from {kind}{peer} to port {port}: ")?;
        match reason {
            Counter::Untrusted if ip.is_loopback() => f.write_str(
                "this host itself is not trusted (if the balancer is here, add --trust loopback; --header optional accepts a \
                 client on this host without a header)",
            ),
            Counter::Untrusted => write!(
                f,
                "this peer is not trusted (if it is the balancer, add --trust {ip})"
            ),
            Counter::NotAHeader => f.write_str(
                "no PROXY header (let the balancer send one, with send-proxy in HAProxy or proxy_protocol in nginx; \
                 or set --header optional)",
            ),
            Counter::HeaderRefused => f.write_str(
                "its PROXY header names no IP address of a client (AF_UNSPEC, AF_UNIX), or --strict-header or \
                 --without-client refuses it (`peername decode` shows what it says)",
            ),
            Counter::Closed => f.write_str("closed before its PROXY header was complete"),
            Counter::Late => f.write_str(
                "its PROXY header was not complete in time (does the balancer send one? --header-timeout is the \
                 deadline)",
            ),
            Counter::Source => f.write_str(
                "its PROXY header names a client address that no remote client can have (--source-policy)",
            ),
            Counter::ClientDenied => {
                f.write_str("it is on the list of --deny-client (client_denied)")
            }
            Counter::ClientNotAllowed if ip.is_loopback() => f.write_str(
                "it is on this host, and not on the list of --allow-client, which `loopback` adds it to (client_not_allowed)",
            ),
            Counter::ClientNotAllowed => {
                write!(f, "it is not on the list of --allow-client{HEALTH_CHECK} (client_not_allowed)")
            }
            Counter::TlvMissing => write!(
                f,
                "its PROXY header lacks a TLV that --require-tlv lists{HEALTH_CHECK} (tlv_missing)"
            ),
            Counter::TlvMismatch => f.write_str(
                "a TLV of its PROXY header has none of the values that --require-tlv lists (tlv_mismatch)",
            ),
            Counter::Full => f.write_str(
                "the table of clients is full (raise --max-connections)",
            ),
            Counter::KeyInUse => f.write_str(
                "the kernel gave it the number of another open connection, so that the two could be confused (let the \
                 server listen by TCP, not by MPTCP)",
            ),
            Counter::NoKey => f.write_str(
                "the kernel here lists no MPTCP connections, so that the end of this one would not be noticed (in a unit: \
                 RestrictAddressFamilies=AF_NETLINK; or let the server listen by TCP, as Go's does with GODEBUG=multipathtcp=0)",
            ),
            Counter::WaiterUnavailable => f.write_str(
                "too many connections wait for the rest of their PROXY header (a higher limit of open files lets more \
                 wait)",
            ),
            Counter::WaiterUnreachable => f.write_str(
                "it has to wait at the supervisor, for the rest of its PROXY header or for the lists of clients, but the \
                 supervisor could not be asked: it has exited, or there was no descriptor for the request (raise the limit \
                 of open files)",
            ),
            Counter::ListenerUnreachable => f.write_str(
                "it waited at the supervisor, for the rest of its PROXY header or for the lists of clients, and this host \
                 may not connect to the server, so the server can't be woken for it (let the firewall's INPUT accept `-i lo`; \
                 a server that is bound to a device by SO_BINDTODEVICE is reached at the device's own addresses only; one \
                 that listens on IPv6 only needs AF_INET6 in RestrictAddressFamilies= of its unit)",
            ),
            Counter::ListenerClosed => f.write_str(
                "while it waited at the supervisor, the program closed its listener; or that is in another network namespace \
                 than the supervisor",
            ),
            Counter::SupervisorStopped => f.write_str(
                "while it waited at the supervisor, the agent was reloaded, or ended",
            ),
            Counter::Accepted | Counter::PassedThrough | Counter::Parked => f.write_str("no reason"),
        }
    }
}

const HEALTH_CHECK: &str =
    "; if it is a balancer that checks this server's health, add it to --health-checks-from";
