use peername_server::destination_list::AllowedDestination;

use super::*;

fn host_address(ip: IpAddr) -> Option<HostAddress> {
    match ip.to_string().as_str() {
        "10.0.0.1" | "2001:db8::1" | "127.0.0.1" | "::1" => Some(HostAddress::Own),
        "10.0.0.255" => Some(HostAddress::NetworkOrBroadcast),
        _ => None,
    }
}

fn policy(entries: &[&str]) -> DestinationPolicy {
    let entries = entries
        .iter()
        .map(|entry| entry.parse::<AllowedDestination>().unwrap());
    DestinationPolicy::new(entries.collect()).unwrap()
}

fn admit(entries: &[&str], destination: &str) -> Result<(), DestinationRefusal> {
    admit_from(entries, destination, false)
}

fn admit_from(
    entries: &[&str],
    destination: &str,
    is_source_trusted: bool,
) -> Result<(), DestinationRefusal> {
    let own_ports = own_ports(false);
    let context = DestinationContext {
        kind_of: &host_address,
        own_ports: &own_ports,
        is_source_trusted,
    };
    policy(entries).admit(destination.parse().unwrap(), context)
}

fn own_ports(is_transparent: bool) -> OwnPorts {
    OwnPorts {
        ports: BTreeSet::from([8443]),
        is_transparent,
    }
}

#[test]
fn only_listed_destinations_are_allowed() {
    let entries = &["10.9.0.0/16:80-90", "[2001:db8:9::]/48:443", "192.0.2.7"];
    for allowed in [
        "10.9.1.2:80",
        "10.9.1.2:90",
        "[2001:db8:9::5]:443",
        "192.0.2.7:1",
        "[::ffff:10.9.1.2]:85",
    ] {
        assert_eq!(admit(entries, allowed), Ok(()), "{allowed}");
    }
    for other in [
        "10.9.1.2:79",
        "10.9.1.2:91",
        "10.8.1.2:80",
        "[2001:db8:9::5]:444",
        "[2001:db8:a::5]:443",
        "192.0.2.8:1",
    ] {
        assert_eq!(
            admit(entries, other),
            Err(DestinationRefusal::NotListed),
            "{other}"
        );
    }
}

/// The verdicts on special addresses are in `tests/address_policy/verdicts.txt`.
#[test]
fn port_zero_is_refused() {
    let verdict = admit(&["0.0.0.0/0"], "10.9.1.2:0");
    assert_eq!(verdict, Err(DestinationRefusal::NoPort));
}

#[test]
fn loopback_is_allowed_only_with_listed_ports() {
    let entries = &["127.0.0.1:9000-9001", "[::1]:9000", "0.0.0.0/0"];
    assert_eq!(admit(entries, "127.0.0.1:9001"), Ok(()));
    assert_eq!(admit(entries, "[::1]:9000"), Ok(()));
    let refused = Err(DestinationRefusal::LoopbackNotListed);
    assert_eq!(admit(entries, "127.0.0.1:9002"), refused);
    assert_eq!(admit(entries, "127.0.0.2:9000"), refused);
}

#[test]
fn metadata_service_is_allowed_only_by_its_exact_address() {
    let only = "169.254.169.254:80";
    assert_eq!(admit(&[only], only), Ok(()));
    assert_eq!(admit(&["fd00:ec2::254"], "[fd00:ec2::254]:80"), Ok(()));
    assert_eq!(
        admit(&["169.254.169.0/24"], only),
        Err(DestinationRefusal::Metadata)
    );
    assert_eq!(
        admit(&["169.254.1.1"], "169.254.1.1:80"),
        Err(DestinationRefusal::LinkLocal)
    );
}

#[test]
fn own_listeners_are_refused_although_they_are_listed() {
    let entries = &[
        "10.0.0.1:8443",
        "127.0.0.1:1-65535",
        "[::1]:8443",
        "10.9.0.0/16",
    ];
    for own in [
        "10.0.0.1:8443",
        "127.0.0.1:8443",
        "127.1.2.3:8443",
        "[::1]:8443",
    ] {
        assert_eq!(
            admit(entries, own),
            Err(DestinationRefusal::OwnListener),
            "{own}"
        );
    }
    // Another host may listen on that port.
    assert_eq!(admit(entries, "10.9.0.1:8443"), Ok(()));
    assert_eq!(admit_from(entries, "10.9.0.1:8443", true), Ok(()));
    assert_eq!(
        admit_from(entries, "127.0.0.1:9000", true),
        Err(DestinationRefusal::TrustedSource)
    );
}

/// A TPROXY rule may redirect connections to a network in which this host has no interface.
#[test]
fn behind_tproxy_any_destination_may_loop() {
    let mut context = DestinationContext {
        kind_of: &host_address,
        own_ports: &own_ports(true),
        is_source_trusted: true,
    };
    let (policy, destination) = (policy(&["10.9.0.0/16"]), "10.9.0.1:80".parse().unwrap());
    assert_eq!(
        policy.admit(destination, context),
        Err(DestinationRefusal::TrustedSource)
    );
    context.is_source_trusted = false;
    assert_eq!(policy.admit(destination, context), Ok(()));
}
