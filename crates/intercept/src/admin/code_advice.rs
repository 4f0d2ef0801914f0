//! Advice for operators: a sentence for each code of an error response, and for each reason of a failed connection.

/// The advice on a code or reason, as the metrics name it; `None` if there is nothing to do.
pub fn advise(reason: &str) -> Option<&'static str> {
    Some(match reason {
        "check_failed" => {
            "The check service does not answer in time, or its answer is not valid: see `peername_check_total`, its log and docs/check.md."
        }
        "audit_failed" => {
            "The file of --log can't be written, and nothing is forwarded meanwhile: the disk may be full."
        }
        "name_mismatch" => {
            "The client names different hosts in CONNECT, TLS and Host: correct its configuration, or --passthrough the host."
        }
        "unknown_protocol" => {
            "The client speaks neither TLS nor HTTP in its tunnel, which no check can inspect."
        }
        "client_tls" => {
            "The client does not trust the authority, or pins a certificate: `peername ca env`, else --passthrough for that host."
        }
        "client_late" | "head_timeout" => {
            "Clients send their request late: a slow network, or they only hold connections open."
        }
        "proxy_auth_required" | "client_not_allowed" => {
            "If it is a client of yours, give it a name of --proxy-auth, or add its network to --allow-client."
        }
        "not_redirected" => {
            "Nothing on this host redirected the connection to the transparent listener: --listen is for clients that know the proxy."
        }
        "too_many_passwords" => {
            "A client sends many wrong passwords, or many users behind one address begin at once: the log has its address."
        }
        "too_many_certificates" => {
            "A client asks for many new hosts: if that is its normal load, raise --certificates-per-client."
        }
        "no_certificate" => {
            "The authority can't sign for that host: the log has the cause; see `peername ca show`."
        }
        "proxy_loop" => {
            "A proxy behind this one sends requests back to it: correct its routes or --upstream-proxy."
        }
        "dns_nxdomain" => "The host does not exist, or only for other resolvers than this host's.",
        "dns_failed" | "dns_timeout" => {
            "This host's resolver fails: check resolv.conf and `peername doctor intercept --resolve NAME`."
        }
        "connect_timeout" | "connect_unreachable" => {
            "The origin can't be reached from this host: check routes, the firewall and --upstream-proxy."
        }
        "connect_refused" => "Nothing listens at the origin's port, or a firewall rejects.",
        "upstream_tls_own_authority" => {
            "A loop through this proxy, or its key was stolen: if there is no loop, run `peername ca rotate`."
        }
        "upstream_tls_untrusted" | "upstream_tls_self_signed" => {
            "If the origin is yours, add its authority with --extra-ca."
        }
        "upstream_tls_ca_certificate" => {
            "The origin uses an authority's certificate (CA:TRUE) as its own: its operator has to replace it by one for a server."
        }
        "upstream_tls_client_certificate" => {
            "The origin wants a client certificate, which the client has: --passthrough the host."
        }
        "upstream_tls_weak_key" => {
            "The origin's key or an issuer's is too short: its operator has to replace it; until then, --passthrough the host."
        }
        "upstream_tls_handshake" | "upstream_tls_timeout" => {
            "The origin fails at TLS, or supports only what is not secure any more: the log has the cause; see --passthrough."
        }
        "upstream_unprocessed" => {
            "The origin refuses requests, maybe because it is overloaded or restarts: its own log has the cause."
        }
        "upstream_closed" | "upstream_reset" | "upstream_timeout" | "upstream_bad_answer" => {
            "The origin gives no valid response: the log has the cause by request."
        }
        "upstream_proxy_failed" | "upstream_proxy_refused" => {
            "The proxy of --upstream-proxy can't be reached or refuses: check its address, name and password."
        }
        "proxy_full" | "too_many_connections" => {
            "This process needs more descriptors: raise LimitNOFILE or `ulimit -n`."
        }
        "proxy_exhausted" => {
            "This host has no descriptor (raise LimitNOFILE), port (widen net.ipv4.ip_local_port_range) or memory left: the log has which."
        }
        "proxy_header" => {
            "A peer of --accept-proxy sends no valid PROXY header: turn it on there, or remove its network."
        }
        "unknown_name" => {
            "A program in a jail uses an address for longer than the jail's name server allows (60 s): it has to resolve the name again."
        }
        "tcp_not_allowed" | "port_not_allowed" => {
            "If the program in the jail may connect there, add a rule with host and port: --allow HOST:PORT."
        }
        "local_error" => "A system call failed on this host: the log names it, and its cause.",
        "destination_own_listener" => {
            "The host's name leads to this proxy itself, and no option allows that: correct its address, or the client's configuration."
        }
        "destination_not_a_server" => {
            "No server has that address or port, and no option allows it: correct the address of the host's name, or what the client connects to."
        }
        "destination_metadata" => {
            "The service gives secrets of this host to any request: if clients may have them, add its exact address to --allow-destination."
        }
        "destination_this_host" => {
            "If clients may go there, add a rule --allow localhost:PORT, or the address to --allow-destination."
        }
        "destination_not_public" => {
            "If clients may go there, name the host in a rule of --allow, or add the network to --allow-destination."
        }
        "destination_port" => {
            "If clients may go there, name host and port in a rule (--allow HOST:PORT), or in --allow-destination."
        }
        _ if reason.starts_with("upstream_tls_") => {
            "The origin's certificate is not valid: its operator has to renew it."
        }
        _ => return None,
    })
}
