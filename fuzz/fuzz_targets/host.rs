//! Names of hosts: no panic; one spelling of each, which reads as itself, and none of an address but the address.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use peername_intercept::host::{Host, HostPort};

fuzz_target!(|text: &str| {
    if let Ok(host) = Host::parse(text) {
        check(text, &host);
        assert_eq!(
            Host::from_sni(text).ok().as_ref(),
            host.as_name().map(|_| &host)
        );
    }
    if let Ok(to) = HostPort::parse(text) {
        assert_ne!(to.port, 0);
        assert_eq!(HostPort::parse(&to.to_string()), Ok(to.clone()));
        assert_eq!(HostPort::parse_or(text, 1), Ok(to));
    }
    if let Ok(to) = HostPort::parse_or(text, 443) {
        assert_eq!(HostPort::parse(&to.to_string()), Ok(to));
    }
});

fn check(text: &str, host: &Host) {
    let shown = host.to_string();
    assert_eq!(Host::parse(&shown).as_ref(), Ok(host));
    assert_eq!(host.to_server_name().to_str(), shown);
    let Some(name) = host.as_name() else {
        let ip = host.as_ip().expect("a name or an address");
        assert_eq!(ip, ip.to_canonical(), "mapped: {text:?}");
        return;
    };
    assert!(shown.parse::<IpAddr>().is_err(), "{text:?}");
    let fits =
        |octet: u8| octet.is_ascii_lowercase() || octet.is_ascii_digit() || b"-_.".contains(&octet);
    assert!(name.bytes().all(fits) && name.len() <= 253, "{text:?}");
    // What inet_aton(3) takes for an address ends in a number.
    let last = name.rsplit('.').next().unwrap_or_default();
    assert!(last.parse::<u64>().is_err(), "{text:?}");
    let hex = last.strip_prefix("0x").unwrap_or("-");
    assert!(
        u64::from_str_radix(hex, 16).is_err() && last != "0x",
        "{text:?}"
    );
}
