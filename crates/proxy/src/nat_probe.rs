//! Probes of the NAT rules of this host, which may replace the client's address on the way to a backend.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use peername_sys::Result as SysResult;
use peername_sys::random;
use peername_sys::socket::egress_probe::EgressProbe;
pub use peername_sys::socket::egress_probe::TranslatedAddresses;

use crate::backend::Backend;

/// Probes which addresses the NAT rules of this network namespace give to packets from `client` to a backend. `None` where the
/// device does not tell.
///
/// Sends one packet, which the backend's kernel drops for its checksum. Needs CAP_NET_RAW.
///
/// # Errors
///
/// A system call failed: EPERM without the capability, and where the packet filter drops the packet.
pub fn probe_egress(
    backend: Backend,
    mark: Option<NonZeroU32>,
    client: SocketAddr,
) -> SysResult<Option<TranslatedAddresses>> {
    let key = (backend.address.is_ipv6(), mark);
    PROBES.with_borrow_mut(|probes| {
        let probe = match probes.remove(&key) {
            Some(probe) => probe,
            None => EgressProbe::open(backend.address.ip(), mark.map(NonZeroU32::get))?,
        };
        let emitted = probe.send(backend.transport, client, backend.address);
        probes.insert(key, probe);
        emitted
    })
}

/// A source for a probe from this address. Its port is random, because connection tracking would translate a port that it has
/// seen before in the same way as then.
pub fn fresh_source(ip: IpAddr) -> peername_sys::Result<SocketAddr> {
    let [word] = random::words()?;
    Ok(SocketAddr::new(ip, FIRST_PROBE_PORT | word as u16))
}

/// Probes come from this port or a higher one: services listen on lower ones.
const FIRST_PROBE_PORT: u16 = 0x8000;
/// The commands that list NAT rules, for error texts.
pub(crate) const LIST_RULES: &str =
    "`nft list ruleset`, `iptables -t nat -S POSTROUTING`, `ip6tables -t nat -S POSTROUTING`";

thread_local! {
    /// A worker's sockets, one for each address family (`true`: IPv6) and mark.
    static PROBES: RefCell<BTreeMap<(bool, Option<NonZeroU32>), EgressProbe>> =
        const { RefCell::new(BTreeMap::new()) };
}
