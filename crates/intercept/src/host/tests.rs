use super::{Host, HostPort, NotAHost};

#[test]
fn one_spelling_for_each_host() {
    let same = [
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
    ];
    for (written, canonical) in same {
        let host = Host::parse(written).unwrap_or_else(|error| panic!("{written}: {error}"));
        assert_eq!(host.to_string(), canonical, "{written}");
        assert_eq!(Host::parse(canonical), Ok(host), "{written}");
    }
}

#[test]
fn a_port_is_told_from_an_address() {
    for (written, again) in [
        ("Example.com.:443", "example.com:443"),
        ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
        ("[::ffff:192.0.2.1]:80", "192.0.2.1:80"),
    ] {
        assert_eq!(HostPort::parse(written).expect(written).to_string(), again);
    }
    for (refused, why) in [
        ("example.com", NotAHost::Port),
        ("example.com:", NotAHost::Port),
        ("example.com:0", NotAHost::Port),
        ("example.com:65536", NotAHost::Port),
        ("example.com:+443", NotAHost::Port),
        ("2001:db8::1:443", NotAHost::Address),
        ("[::1", NotAHost::Address),
        ("[::1]443", NotAHost::Address),
        (":443", NotAHost::Empty),
        ("user@example.com:443", NotAHost::UserInfo),
    ] {
        assert_eq!(HostPort::parse(refused), Err(why), "{refused}");
    }
    let of_header = HostPort::parse_or("[::1]", 443).expect("a host");
    assert_eq!(of_header.to_string(), "[::1]:443");
}
