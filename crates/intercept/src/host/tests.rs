use proptest::prelude::*;

use super::{Host, HostPort, ParseHostError};

#[test]
fn one_spelling_for_each_host() {
    for (written, canonical) in [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("xn--Bcher-KVA.example", "xn--bcher-kva.example"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("r3---sn-4g5e6nsz.example", "r3---sn-4g5e6nsz.example"),
        ("localhost", "localhost"),
        ("192.0.2.1", "192.0.2.1"),
        ("[2001:DB8::1]", "2001:db8::1"),
        ("2001:db8:0:0::1", "2001:db8::1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("[::ffff:c000:201]", "192.0.2.1"),
    ] {
        let host = Host::parse(written).unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(host.to_string(), canonical, "{written}");
        assert_eq!(Host::parse(canonical), Ok(host), "{written}");
    }
}

#[test]
fn a_port_is_distinguished_from_an_address() {
    for (written, canonical) in [
        ("Example.com.:443", "example.com:443"),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
    ] {
        let to = HostPort::parse(written).expect(written);
        assert_eq!(to.to_string(), canonical);
    }
    for (refused, why) in [
        ("example.com", ParseHostError::Port),
        ("example.com:", ParseHostError::Port),
        ("example.com:0", ParseHostError::Port),
        ("example.com:65536", ParseHostError::Port),
        ("example.com:+443", ParseHostError::Port),
        ("2001:db8::1:443", ParseHostError::Address),
        ("[::1", ParseHostError::Address),
        ("[::1]443", ParseHostError::Address),
        (":443", ParseHostError::Empty),
        ("user@example.com:443", ParseHostError::UserInfo),
    ] {
        assert_eq!(HostPort::parse(refused), Err(why), "{refused}");
    }
    let without_port = HostPort::parse_or("[::1]", 443).expect("a host");
    assert_eq!(without_port.to_string(), "[::1]:443");
}

#[test]
fn an_authority_has_the_port_that_its_scheme_does_not_imply() {
    for (to, scheme, authority) in [
        ("a.test:443", "https", "a.test"),
        ("a.test:80", "https", "a.test:80"),
        ("a.test:1443", "https", "a.test:1443"),
        ("[2001:db8::1]:80", "http", "[2001:db8::1]"),
        ("a.test:443", "", "a.test:443"),
    ] {
        let to = HostPort::parse(to).unwrap();
        assert_eq!(to.to_authority(scheme), authority);
    }
}

#[test]
fn ambiguous_spellings_are_refused() {
    for (refused, why) in [
        ("", ParseHostError::Empty),
        (".", ParseHostError::Empty),
        ("127.1", ParseHostError::Address),
        ("2130706433", ParseHostError::Address),
        ("0x7f.1", ParseHostError::Address),
        ("0x7f000001", ParseHostError::Address),
        ("0X7F.0.0.0x1", ParseHostError::Address),
        ("0177.0.0.1", ParseHostError::Address),
        ("127.0.0.1.", ParseHostError::Address),
        ("256.0.0.1", ParseHostError::Address),
        ("1.2.3.4.5", ParseHostError::Address),
        ("foo.0x", ParseHostError::Address),
        ("fe80::1%eth0", ParseHostError::Address),
        ("[::1", ParseHostError::Address),
        ("[127.0.0.1]", ParseHostError::Address),
        ("example..com", ParseHostError::Label),
        ("example.com..", ParseHostError::Label),
        (".example.com", ParseHostError::Label),
        ("-example.com", ParseHostError::Label),
        ("example-.com", ParseHostError::Label),
        ("bücher.example", ParseHostError::Character),
        ("example。com", ParseHostError::Character),
        ("*.example.com", ParseHostError::Character),
        ("example.com/", ParseHostError::Character),
        ("exa mple.com", ParseHostError::Character),
        ("example.com\0", ParseHostError::Character),
    ] {
        assert_eq!(Host::parse(refused), Err(why), "{refused}");
    }
}

#[test]
fn a_name_longer_than_dns_permits_is_refused() {
    let label = "a".repeat(63);
    let longest = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    Host::parse(&longest).expect("253 bytes");
    Host::parse(&format!("{longest}.")).expect("the final dot does not count");
    for too_long in [format!("a{longest}"), format!("a{label}.example")] {
        assert_eq!(Host::parse(&too_long), Err(ParseHostError::TooLong));
    }
}

#[test]
fn sni_is_a_name() {
    assert_eq!(Host::from_sni("Example.com"), Host::parse("example.com"));
    for address in ["192.0.2.1", "::1", "[::1]"] {
        assert_eq!(Host::from_sni(address), Err(ParseHostError::AddressAsSni));
    }
}

proptest! {
    /// A host that is accepted is canonical, and is a valid server name for TLS to the origin.
    #[test]
    fn an_accepted_host_is_canonical(text in "[a-zA-Z0-9._:\\[\\]x-]{0,40}") {
        if let Ok(host) = Host::parse(&text) {
            let written = host.to_string();
            prop_assert_eq!(Host::parse(&written), Ok(host.clone()));
            prop_assert_eq!(&written, &written.to_ascii_lowercase());
            let server_name = host.to_server_name();
            prop_assert_eq!(server_name.to_str(), written);
        }
    }

    #[test]
    fn parsing_never_panics(text in "\\PC{0,300}", port in any::<u16>()) {
        let _ = Host::parse(&text);
        let _ = HostPort::parse(&text);
        let _ = HostPort::parse_or(&text, port);
    }

    #[test]
    fn a_printed_host_and_port_parses_to_the_same_value(name in "[a-z]{1,9}(\\.[a-z]{1,9}){0,3}", ip in any::<std::net::IpAddr>(), port in 1..=u16::MAX) {
        for host in [Host::parse(&name).expect("a name"), Host::from(ip)] {
            let both = HostPort { host, port };
            prop_assert_eq!(HostPort::parse(&both.to_string()), Ok(both));
        }
    }

    /// Text that the C library reads as an address is parsed as an address or refused: it never becomes a name.
    #[test]
    fn a_number_never_becomes_a_name(numbers in prop::collection::vec("(0|0x)?[0-9a-f]{0,8}", 1..5)) {
        let text = numbers.join(".");
        if let Ok(host) = Host::parse(&text) {
            let last = text.rsplit('.').next().unwrap_or_default();
            let is_number = last.parse::<u64>().is_ok();
            prop_assert!(host.as_ip().is_some() || !is_number, "{}", text);
        }
    }
}
