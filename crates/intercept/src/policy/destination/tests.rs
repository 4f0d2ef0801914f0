use peername_proto::HostAddress;

use super::*;
use crate::authz::Rule;

fn destinations(rules: &[&str]) -> Destinations {
    let rules = rules
        .iter()
        .map(|rule| Rule::allow(rule).unwrap())
        .collect();
    let own = "10.0.0.9".parse().unwrap();
    Destinations {
        allowed: DestinationList::default(),
        ports: Vec::new(),
        rules: SharedRules::new(AccessRules::new(rules).unwrap().map(Arc::new)),
        relayed: AccessRules::deny_others(Vec::new()),
        treats_loopback_as_one: false,
        own_addresses: OwnAddresses::fixed([(own, HostAddress::Own)]),
        listening: vec![3128],
    }
}

/// Whether a request for `to` may be sent to this address, with and without a certificate that proves the name.
fn verdicts(destinations: &Destinations, to: &str, ip: &str) -> [bool; 2] {
    let to = HostPort::parse(to).unwrap();
    let addr = SocketAddr::new(ip.parse().unwrap(), to.port);
    [true, false].map(|is_verified| {
        let requested = Requested {
            is_verified,
            ..Requested::plain(&to)
        };
        destinations.admit(addr, requested).is_ok()
    })
}

#[test]
fn exact_name_opens_private_addresses_that_a_certificate_proves_or_with_its_port() {
    let listed = destinations(&["wiki.test", "db.test:5432", "*.any.test:5432", "*"]);
    for (to, ip, expected) in [
        ("wiki.test:443", "10.0.0.1", [true, false]),
        ("wiki.test:443", "fd00::1", [true, false]),
        ("wiki.test:443", "64:ff9b::a00:1", [true, false]),
        ("wiki.test:5432", "10.0.0.1", [false, false]),
        ("db.test:5432", "10.0.0.1", [true, true]),
        ("db.test:5432", "192.0.2.1", [true, true]),
        ("db.test:443", "10.0.0.1", [false, false]),
        ("db.test:5432", "11.0.0.1", [true, true]),
        ("x.any.test:5432", "11.0.0.1", [true, true]),
        ("x.any.test:5432", "10.0.0.1", [false, false]),
        ("other.test:443", "10.0.0.1", [false, false]),
        ("other.test:5432", "11.0.0.1", [false, false]),
    ] {
        assert_eq!(verdicts(&listed, to, ip), expected, "{to} {ip}");
    }
    // DNS rebinding: no rule for a name opens these.
    for ip in [
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "169.254.1.1",
        "10.0.0.9",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
    ] {
        assert_eq!(verdicts(&listed, "db.test:5432", ip), [false; 2], "{ip}");
    }
}

#[test]
fn rule_for_some_requests_opens_nothing_for_the_others() {
    let listed = destinations(&[
        "GET 127.0.0.1:8081/health",
        "GET 10.0.0.1",
        "wiki.test/pub",
        "GET *:9001",
        "10.0.0.2",
        "*",
    ]);
    for (to, ip, is_open) in [
        ("127.0.0.1:8081", "127.0.0.1", false),
        ("10.0.0.1:443", "10.0.0.1", false),
        ("wiki.test:443", "10.0.0.1", false),
        ("other.test:9001", "11.0.0.1", false),
        ("10.0.0.2:443", "10.0.0.2", true),
    ] {
        assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
    }
    let alone = destinations(&["GET 127.0.0.1:8081/health", "POST 127.0.0.1:8081/x"]);
    assert_eq!(verdicts(&alone, "127.0.0.1:8081", "127.0.0.1"), [true; 2]);
    let after_all = destinations(&["*", "GET 10.0.0.1/x", "10.0.0.1"]);
    assert_eq!(verdicts(&after_all, "10.0.0.1:443", "10.0.0.1"), [true; 2]);
}

/// It does not open a private address, as the requests that other rules allow would go there, too.
#[test]
fn port_of_a_rule_is_open_to_the_requests_that_the_rule_allows() {
    let listed = destinations(&["GET wiki.test:9000/x", "*"]);
    let to = HostPort::parse("wiki.test:9000").unwrap();
    for (ip, is_port_named, is_open) in [
        ("11.0.0.1", true, true),
        ("11.0.0.1", false, false),
        ("10.0.0.1", true, false),
    ] {
        let requested = Requested {
            is_port_named,
            ..Requested::plain(&to)
        };
        let addr = SocketAddr::new(ip.parse().unwrap(), to.port);
        let admitted = listed.admit(addr, requested);
        assert_eq!(admitted.is_ok(), is_open, "{ip} {is_port_named}");
    }
}

#[test]
fn remedy_for_this_host_opens_it() {
    for (to, ip, option) in [
        ("localhost:8081", "127.0.0.1", "--allow localhost:8081"),
        ("127.0.0.1:8081", "127.0.0.1", "--allow localhost:8081"),
        ("[::1]:8081", "::1", "--allow localhost:8081"),
        ("127.0.0.2:8081", "127.0.0.2", "--allow 127.0.0.2:8081"),
        (
            "db.test:8081",
            "127.0.0.1",
            "--allow-destination 127.0.0.1:8081",
        ),
    ] {
        let addr = SocketAddr::new(ip.parse().unwrap(), 8081);
        let named = HostPort::parse(to).unwrap();
        let remedy = DestinationDenied::ThisHost.remedy(&named, None, addr, true);
        let remedy = remedy.expect("a remedy");
        assert_eq!(remedy.to_string(), option, "{to}");
        if let Remedy::Allow(rule) = remedy {
            assert_eq!(verdicts(&destinations(&[&rule]), to, ip), [true; 2], "{to}");
        }
    }
}

#[test]
fn remedy_for_a_name_names_the_address_where_no_rule_for_the_name_opens_it() {
    let redirected = Some([10, 0, 0, 1].into());
    for (ip, original_dst, option) in [
        ("10.0.0.1", None, "--allow wiki.test:443"),
        ("10.0.0.1", redirected, "--allow-destination 10.0.0.1:443"),
        ("169.254.1.1", None, "--allow-destination 169.254.1.1:443"),
    ] {
        let to = HostPort::parse("wiki.test:443").unwrap();
        let addr = SocketAddr::new(ip.parse().unwrap(), 443);
        let remedy = DestinationDenied::NotPublic.remedy(&to, original_dst, addr, true);
        assert_eq!(remedy.unwrap().to_string(), option, "{ip} {original_dst:?}");
    }
}

/// A client that is redirected to the proxy chooses both the address and the name.
#[test]
fn address_that_the_client_chose_is_not_opened_by_a_name() {
    let listed = destinations(&["wiki.test:443"]);
    let to = HostPort::parse("wiki.test:443").unwrap();
    for (is_resolved, is_open) in [(true, true), (false, false)] {
        let requested = Requested {
            is_verified: true,
            is_resolved,
            ..Requested::plain(&to)
        };
        let addr = SocketAddr::new("10.0.0.1".parse().unwrap(), 443);
        assert_eq!(listed.admit(addr, requested).is_ok(), is_open);
    }
}

#[test]
fn exact_address_opens_itself_and_networks_open_nothing() {
    let listed = destinations(&[
        "10.0.0.1",
        "169.254.169.254:80",
        "127.0.0.1:8081",
        "10.0.0.9:443",
        "10.1.0.0/16:5432",
        "10.0.0.1:3128",
    ]);
    for (to, ip, is_open) in [
        ("10.0.0.1:443", "10.0.0.1", true),
        ("10.0.0.1:5432", "10.0.0.1", false),
        ("a.test:443", "10.0.0.1", false),
        ("169.254.169.254:80", "169.254.169.254", true),
        ("a.test:80", "169.254.169.254", false),
        ("127.0.0.1:8081", "127.0.0.1", true),
        ("127.0.0.1:8081", "::1", false),
        ("localhost:8081", "127.0.0.1", false),
        ("10.0.0.9:443", "10.0.0.9", true),
        ("10.1.0.1:5432", "10.1.0.1", false),
        ("10.0.0.2:443", "10.0.0.2", false),
    ] {
        assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
    }
    let own = destinations(&["127.0.0.1:3128"]);
    assert_eq!(verdicts(&own, "127.0.0.1:3128", "127.0.0.1"), [false; 2]);
}

#[test]
fn both_loopback_addresses_are_tried_if_a_rule_opens_localhost() {
    let destinations = destinations(&["any", "localhost:8081"]);
    for (to, ip, is_both) in [
        ("[::1]:8081", "::1", true),
        ("[::1]:8082", "::1", false),
        ("[::1]:8081", "192.0.2.1", false),
    ] {
        let (to, ip) = (HostPort::parse(to).unwrap(), ip.parse().unwrap());
        assert_eq!(
            destinations.may_try_both_loopbacks(&to, ip),
            is_both,
            "{to:?}"
        );
    }
}

#[test]
fn localhost_opens_loopback_at_its_port_only() {
    let listed = destinations(&["localhost:8081"]);
    for (to, ip, is_open) in [
        ("localhost:8081", "127.0.0.1", true),
        ("localhost:8081", "::1", true),
        ("127.0.0.1:8081", "::1", true),
        ("localhost:8082", "127.0.0.1", false),
        ("localhost:8081", "10.0.0.9", false),
        ("localhost:8081", "10.0.0.1", false),
        ("localhost:8081", "169.254.169.254", false),
    ] {
        assert_eq!(verdicts(&listed, to, ip), [is_open; 2], "{to} {ip}");
    }
}
