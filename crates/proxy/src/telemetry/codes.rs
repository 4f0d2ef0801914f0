//! The table of the codes in metrics and logs, for ended connections and sessions and for dropped datagrams. Each code has the
//! stage at which the connection, session or datagram ended, and one line of advice for the operator.

/// The stage at which a connection, session or datagram ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its regular end, or one by this process or its operator.
    RegularEnd,
    /// The peer was refused by its address.
    Peer,
    /// The header was read.
    HeaderRead,
    /// No header was found.
    HeaderSearch,
    /// The header was parsed and judged.
    HeaderParse,
    /// The backend was chosen and connected to.
    Connect,
    /// Bytes were relayed.
    Relay,
    /// A datagram was relayed, or sent.
    Datagram,
}

/// The stage and the advice of a code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code {
    /// The stage at which it ends a connection, session or datagram.
    pub stage: Stage,
    /// What the operator can do; `None` where there is nothing to do.
    pub advice: Option<&'static str>,
}

impl Stage {
    const fn with_advice(self, advice: &'static str) -> Code {
        Code {
            stage: self,
            advice: Some(advice),
        }
    }

    const fn without_advice(self) -> Code {
        Code {
            stage: self,
            advice: None,
        }
    }
}

/// Looks a code up by its name in metrics and logs; `None` for an unknown one.
pub fn look_up(name: &str) -> Option<Code> {
    Some(match name {
        "finished" | "health_check" | "idle" | "stopped" | "cut" | "closed_by_admin" => {
            Stage::RegularEnd.without_advice()
        }
        "access_revoked" => Stage::RegularEnd.with_advice(
            "The client is on the list of --deny-client: remove its entry to let it in. The log names the entry.",
        ),
        "evicted" => Stage::RegularEnd.with_advice(EVICTED_ADVICE),
        "unanswered" => Stage::RegularEnd.with_advice(
            "The backend never replied from the port that it is reached at: check that it runs and answers this protocol.",
        ),
        "untrusted_peer" => Stage::Peer.with_advice(
            "If it is a balancer of yours, add its address to --trust.",
        ),
        "closed_without_header" | "downstream_reset" => Stage::HeaderRead.without_advice(),
        "too_many_pending" => Stage::HeaderRead.with_advice(
            "Many connections send no header. If they are clients of yours, raise --max-pending or --max-pending-per-peer.",
        ),
        "header_timeout" => Stage::HeaderRead.with_advice(
            "The balancer sends the header late, or not before the client's first byte (AWS NLB: on_first_ack). See --header-timeout.",
        ),
        "header_truncated" => Stage::HeaderRead.with_advice(
            "The peer closed inside its header: usually a check or a scanner. -v names it.",
        ),
        "no_header" => Stage::HeaderSearch.with_advice(
            "Turn the PROXY protocol on at the balancer. -v shows what the connections begin with, and whether clients bypass the balancer. Over UDP, --udp-header first is for balancers that send one on the first datagram only.",
        ),
        "v1_on_datagram" => Stage::HeaderSearch.with_advice(
            "The balancer sends a text header over UDP, as nginx does, on the first datagram of a flow: --udp-header first takes it, without --strict-header.",
        ),
        "header_too_long" | "too_many_tlvs" => Stage::HeaderParse.with_advice(
            "The balancer adds many TLVs: have it send fewer, or raise --max-header (64 TLVs at most).",
        ),
        "header_without_address" => Stage::HeaderParse.with_advice(
            "The balancer relays a connection without an IP address (AF_UNSPEC, AF_UNIX): have it send LOCAL for its own, or the client's address.",
        ),
        "header_without_client" => Stage::HeaderParse.with_advice(
            "The balancer sends LOCAL or UNKNOWN, as its health checks do, and --without-client refuses it.",
        ),
        "header_deviation" => Stage::HeaderParse.with_advice(
            "The header is unambiguous, but not as the specification has it: --strict-header refuses it. The log says what differs.",
        ),
        "datagram_transport" | "stream_transport" => Stage::HeaderParse.with_advice(
            "The header is for the other transport: check the balancer's configuration of this port.",
        ),
        "listener_closed" => Stage::Connect.without_advice(),
        "source_loopback" | "source_own_address" => Stage::Connect.with_advice(
            "The header claims this host as the client. The balancer accepts it from its clients, or checks health: have it send LOCAL. If clients are on this host (hairpin), --source-policy allow-local.",
        ),
        "source_unspecified" | "source_broadcast" | "source_multicast" | "source_link_local" => {
            Stage::Connect.with_advice(
                "No client can have that address: the balancer passes on a header that its client sent. Have it accept none.",
            )
        }
        "source_reserved" => Stage::Connect.with_advice(
            "The client is in 240.0.0.0/4. If your network has such addresses, --source-policy allow-reserved.",
        ),
        "source_port_0" => Stage::Connect.with_advice(
            "The header names no source port, so --dynamic-destination could not detect a loop: have the balancer send it.",
        ),
        "client_denied" => Stage::Connect.with_advice(
            "The client is on the list of --deny-client: remove its entry to let it in. The log names the entry.",
        ),
        "client_not_allowed" => Stage::Connect.with_advice(
            "If the client may come, add its network to --allow-client; if it is a balancer that checks health, to --health-checks-from.",
        ),
        "tlv_missing" => Stage::Connect.with_advice(
            "The balancer does not send what --require-tlv requires (--log-tlv shows what it sends), or checks health: see --health-checks-from.",
        ),
        "tlv_mismatch" => Stage::Connect.with_advice(
            "The balancer does not send what --require-tlv requires, or the client came another way: --log-tlv shows what it sends.",
        ),
        "too_many_connections" => Stage::Connect.with_advice(
            "The open connections of one client are more than twice as many as the free file descriptors allow: raise LimitNOFILE or `ulimit -n` if this is the normal load.",
        ),
        "destination_not_listed" => Stage::Connect.with_advice(
            "Most balancers name themselves as the destination: then set a target instead of --dynamic-destination. If clients may go there, add the network to --allow-destination.",
        ),
        "destination_own_listener" | "destination_loop" => Stage::Connect.with_advice(
            "The connection would come back to peername: correct the destination that the balancer sends.",
        ),
        "destination_family" => Stage::Connect.with_advice(
            "Client and destination differ in family: have the balancer send both in one.",
        ),
        "destination_loopback"
        | "destination_trusted_source"
        | "destination_metadata"
        | "destination_link_local" => Stage::Connect.with_advice(
            "A header may name that destination only where it is listed by itself: see docs/destinations.md.",
        ),
        "destination_multicast"
        | "destination_unspecified"
        | "destination_broadcast"
        | "destination_embedded"
        | "destination_port_0" => Stage::Connect.with_advice(
            "No server has that destination: correct what the balancer sends.",
        ),
        "no_target" => Stage::Connect.with_advice(
            "The clients' address family has no backend: name it with --target, start a TCP server by `peername exec`, which serves both families, or take the balancer's address of that family out of the DNS.",
        ),
        "reply_path" => Stage::Connect.with_advice(
            "Replies do not come back to this host: the log has the `peername routes add` that adds the missing rule; `peername doctor` with the options of the proxy explains it.",
        ),
        "port_taken" => Stage::Connect.with_advice(
            "Another socket of this host has the client's port, or two balancers send for one client: see --on-port-collision.",
        ),
        "connect_refused" => Stage::Connect.with_advice(
            "Nothing listens at the backend, or a firewall rejects: check that it runs, and --target.",
        ),
        "connect_timeout" => Stage::Connect.with_advice(
            "The backend does not answer, its replies do not come back, or it does not read the header: run `peername doctor` with the options of the proxy.",
        ),
        "header_unwritable" => Stage::Connect.with_advice(
            "The header to the backend does not fit: send fewer TLVs.",
        ),
        "source_rewritten" => Stage::Connect.with_advice(
            "A rule of the firewall or a plug-in of the network changes the source: look for SNAT and MASQUERADE towards the backend.",
        ),
        "source_translated" => Stage::Connect.with_advice(
            "A NAT rule of this host masquerades the client towards the backend: exempt the backend from it; for one on loopback --setup-routes does. `peername doctor` names the rule.",
        ),
        "local_error" => Stage::Connect.with_advice(
            "A system call failed on this host: the log names it, and its cause.",
        ),
        "reset" => Stage::Relay.without_advice(),
        "unwatched" => Stage::Relay.with_advice(
            "Memory or watches are used up: raise fs.epoll.max_user_watches.",
        ),
        "socket_destroyed" => Stage::Relay.with_advice(
            "Another program destroyed the session's socket (`ss --kill`).",
        ),
        "header_only" | "longer_than_buffer" | "flow_changed" | "stranger" | "stopping" => {
            Stage::Datagram.without_advice()
        }
        "session_evicted" => Stage::Datagram.with_advice(EVICTED_ADVICE),
        "receive_buffer_full" => Stage::Datagram.with_advice(
            "Datagrams came faster than they were read: raise net.core.rmem_max.",
        ),
        "send_buffer_full" => Stage::Datagram.with_advice(
            "Datagrams were sent faster than the network takes them: raise net.core.wmem_max.",
        ),
        "too_large" => Stage::Datagram.with_advice(
            "A datagram with its header exceeds the path's MTU: lower the MTU that clients use.",
        ),
        "unreachable" => Stage::Datagram.with_advice(
            "The receiver's host reports that nothing listens there: check the backend.",
        ),
        "unsendable" => Stage::Datagram.with_advice(
            "The kernel refuses to send: the log has the error.",
        ),
        "reply_without_header" => Stage::Datagram.with_advice(
            "Replies to a forwarder with spp need a header: check the receiver's dialect.",
        ),
        "kernel" => Stage::Datagram.with_advice("The kernel had no memory to change a packet."),
        _ if is_malformed(name) => Stage::HeaderParse.with_advice(
            "The header is malformed: capture one and let `peername decode` explain it.",
        ),
        _ => return None,
    })
}

/// The advice on a code; `None` where there is nothing to do.
pub fn advise(name: &str) -> Option<&'static str> {
    look_up(name)?.advice
}

/// Whether it is a code of [`peername_proto::Invalid`] for bytes that begin like a header, but are not a valid one.
fn is_malformed(code: &str) -> bool {
    matches!(
        code,
        "truncated" | "tlv_overrun" | "unique_id_length" | "ssl_structure"
    ) || ["v1_", "v2_", "crc32c_", "spp_"]
        .iter()
        .any(|kind| code.starts_with(kind))
}

const EVICTED_ADVICE: &str = "A new session evicts an open one: peername_udp_evictions_total and the log name the limit. Raise it (--max-sessions, --max-sessions-per-balancer, descriptors or ports), or lower --close-after.";

#[cfg(test)]
mod tests {
    use super::*;

    const LOGS: &str = include_str!("../../../../docs/logs.md");
    const UDP: &str = include_str!("../../../../docs/udp.md");

    /// The names in the first column of the table below a heading.
    fn first_column<'page>(page: &'page str, heading: &str) -> Vec<&'page str> {
        let (_, section) = page.split_once(heading).expect(heading);
        let (section, _) = section.split_once("\n#").unwrap_or((section, ""));
        section
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|row| row.split(" | ").next())
            .flat_map(|cell| cell.trim_end_matches('`').split("`, `"))
            .collect()
    }

    /// All codes, as the pages list them. The black-box tests verify that the pages are complete.
    fn documented_codes() -> impl Iterator<Item = &'static str> {
        let outcomes = first_column(LOGS, "### Outcomes");
        let drops = first_column(UDP, "## Drop reasons");
        assert!(
            outcomes.len() > 50 && drops.len() > 15,
            "{outcomes:?} {drops:?}"
        );
        let patterns = ["…", "source_…"];
        outcomes
            .into_iter()
            .chain(drops)
            .filter(move |code| !patterns.contains(code))
    }

    /// A refusal without advice leaves the operator alone with a number.
    #[test]
    fn every_documented_code_is_known_and_every_refusal_has_advice() {
        let nothing_to_do = [
            // Regular ends.
            "finished",
            "health_check",
            "reset",
            "idle",
            "cut",
            "closed_by_admin",
            "stopped",
            "listener_closed",
            // Health checks, and clients that give up.
            "closed_without_header",
            "downstream_reset",
            // Drops of single datagrams.
            "header_only",
            "stopping",
            "flow_changed",
            "stranger",
            "longer_than_buffer",
        ];
        for code in documented_codes() {
            let known = look_up(code).unwrap_or_else(|| panic!("unknown code: {code}"));
            let is_silent = nothing_to_do.contains(&code);
            assert_eq!(known.advice.is_none(), is_silent, "{code}");
        }
    }
}
