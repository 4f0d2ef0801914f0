//! Host names: no panic; one canonical form of each, which parses to itself; and no name can be taken for an address.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use peername_intercept::host::{Host, HostPort};

fuzz_target!(|text: &str| {
    if let Ok(host) = Host::parse(text) {
        check_canonical(text, &host);
        assert_eq!(
            Host::from_sni(text).ok().as_ref(),
            host.as_name().map(|_| &host)
        );
    }
    if let Ok(host_port) = HostPort::parse(text) {
        assert_ne!(host_port.port, 0);
        assert_eq!(
            HostPort::parse(&host_port.to_string()),
            Ok(host_port.clone())
        );
        assert_eq!(HostPort::parse_or(text, 1), Ok(host_port));
    }
    if let Ok(host_port) = HostPort::parse_or(text, 443) {
        assert_eq!(HostPort::parse(&host_port.to_string()), Ok(host_port));
    }
});

fn check_canonical(text: &str, host: &Host) {
    let canonical = host.to_string();
    assert_eq!(Host::parse(&canonical).as_ref(), Ok(host));
    assert_eq!(host.to_server_name().to_str(), canonical);
    let Some(name) = host.as_name() else {
        let ip = host.as_ip().expect("a name or an address");
        assert_eq!(ip, ip.to_canonical(), "mapped: {text:?}");
        return;
    };
    assert!(canonical.parse::<IpAddr>().is_err(), "{text:?}");
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    assert!(
        name.bytes().all(is_allowed) && name.len() <= 253,
        "{text:?}"
    );
    // A URL parser takes a name that ends in a number for an IPv4 address (the WHATWG URL standard).
    let last = name.rsplit('.').next().unwrap_or_default();
    assert!(last.parse::<u64>().is_err(), "{text:?}");
    let hex = last.strip_prefix("0x").unwrap_or("-");
    assert!(
        u64::from_str_radix(hex, 16).is_err() && last != "0x",
        "{text:?}"
    );
}
