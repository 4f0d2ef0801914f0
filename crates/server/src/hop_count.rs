//! The hop count that a proxy adds to the headers it sends, so that a routing loop ends.
//!
//! Proxies that connect to the destination named in the header (`--dynamic-destination`) could send a connection round a
//! loop for ever. So each adds one to a count in a TLV, and the destination policy refuses a header with too many hops.

use peername_proto::{Header, Tlv};

/// The hop count of a header: the highest where it has several, 0 where it has none.
pub fn read(header: &Header<'_>) -> u8 {
    header
        .tlvs
        .iter()
        .filter(|tlv| tlv.kind == TLV_TYPE)
        .filter_map(|tlv| match tlv.value.strip_prefix(PREFIX) {
            Some([count]) => Some(*count),
            _ => None,
        })
        .max()
        .unwrap_or(0)
}

/// Whether this TLV is a hop count, valid or not.
pub fn is_hop_count(tlv: Tlv<'_>) -> bool {
    tlv.kind == TLV_TYPE && tlv.value.starts_with(PREFIX)
}

/// The value of the TLV with this hop count.
pub fn value(hops: u8) -> Vec<u8> {
    [PREFIX, &[hops]].concat()
}

/// The first of the types reserved for experiments (PROXY protocol, section 2.2.8). Any sender may use it, so the
/// value begins with a name.
pub const TLV_TYPE: u8 = 0xf0;
const PREFIX: &[u8] = b"peername-hops";
