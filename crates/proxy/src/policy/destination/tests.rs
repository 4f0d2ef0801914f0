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

fn admit(
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

/// The verdicts on special addresses are in `tests/address_policy/verdicts.txt`.
#[test]
fn only_listed_destinations_are_allowed() {
    use DestinationRefusal::{LinkLocal, LoopbackNotListed, Metadata, NoPort, NotListed};
    let hosts: &[_] = &["10.9.0.0/16:80-90", "[2001:db8:9::]/48:443", "192.0.2.7"];
    let loopback: &[_] = &["127.0.0.1:9000-9001", "[::1]:9000", "0.0.0.0/0"];
    for (entries, destination, verdict) in [
        (hosts, "10.9.1.2:80", Ok(())),
        (hosts, "10.9.1.2:90", Ok(())),
        (hosts, "[2001:db8:9::5]:443", Ok(())),
        (hosts, "192.0.2.7:1", Ok(())),
        (hosts, "[::ffff:10.9.1.2]:85", Ok(())),
        (hosts, "10.9.1.2:79", Err(NotListed)),
        (hosts, "10.9.1.2:91", Err(NotListed)),
        (hosts, "10.8.1.2:80", Err(NotListed)),
        (hosts, "[2001:db8:9::5]:444", Err(NotListed)),
        (hosts, "[2001:db8:a::5]:443", Err(NotListed)),
        (hosts, "192.0.2.8:1", Err(NotListed)),
        (&["0.0.0.0/0"], "10.9.1.2:0", Err(NoPort)),
        // Loopback is allowed with listed ports only.
        (loopback, "127.0.0.1:9001", Ok(())),
        (loopback, "[::1]:9000", Ok(())),
        (loopback, "127.0.0.1:9002", Err(LoopbackNotListed)),
        (loopback, "127.0.0.2:9000", Err(LoopbackNotListed)),
        // A metadata service is allowed by its exact address only.
        (&["169.254.169.254:80"], "169.254.169.254:80", Ok(())),
        (&["fd00:ec2::254"], "[fd00:ec2::254]:80", Ok(())),
        (&["169.254.169.0/24"], "169.254.169.254:80", Err(Metadata)),
        (&["169.254.1.1"], "169.254.1.1:80", Err(LinkLocal)),
    ] {
        assert_eq!(admit(entries, destination, false), verdict, "{destination}");
    }
}

#[test]
fn own_listeners_are_refused_although_they_are_listed() {
    use DestinationRefusal::{OwnListener, TrustedSource};
    let entries = &[
        "10.0.0.1:8443",
        "127.0.0.1:1-65535",
        "[::1]:8443",
        "10.9.0.0/16",
    ];
    for (destination, is_source_trusted, verdict) in [
        ("10.0.0.1:8443", false, Err(OwnListener)),
        ("127.0.0.1:8443", false, Err(OwnListener)),
        ("127.1.2.3:8443", false, Err(OwnListener)),
        ("[::1]:8443", false, Err(OwnListener)),
        // Another host may listen on that port.
        ("10.9.0.1:8443", false, Ok(())),
        ("10.9.0.1:8443", true, Ok(())),
        ("127.0.0.1:9000", true, Err(TrustedSource)),
    ] {
        let judged = admit(entries, destination, is_source_trusted);
        assert_eq!(judged, verdict, "{destination}");
    }
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
