//! Cloudflare's Simple Proxy Protocol: an accepted header re-encodes to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use peername_proto::Spp;

fuzz_target!(|datagram: &[u8]| {
    match Spp::parse(datagram) {
        Ok(header) => assert_eq!(header.to_bytes()[..], datagram[..Spp::LEN]),
        Err(invalid) => {
            assert!(datagram.len() < Spp::LEN || !datagram.starts_with(&[0x56, 0xec]));
            assert!(!invalid.to_string().is_empty());
        }
    }
});
