//! Upgrade without loss: sessions move to the new process with their sockets.

mod load;

use std::net::SocketAddr;

use rustix::process::Signal;

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::lab::{Lab, Scratch, assert_contains};
use crate::harness::peername::{PROXY_ARGS, words};
use crate::harness::rig::udp::datagram_header_for;
use crate::harness::rig::upgrade::{Binary, UpgradeRig};
use load::{Header, UdpLoad};

/// A hundred upgrades in a row, every third to a broken binary.
#[test]
fn hundred_upgrades_lose_no_datagram() {
    upgrade_under_load(Header::Each, 100, &[]);
}

/// In the dialect `first`, the new process needs the clients of all flows, as no later datagram names them.
#[test]
fn upgrades_lose_no_datagram_of_other_dialects() {
    for header in [Header::First, Header::Spp] {
        upgrade_under_load(header, 10, &[]);
    }
}

/// Offloaded sessions return to user space for the handover, and the new process offloads them again.
#[test]
fn upgrades_lose_no_offloaded_datagram() {
    for header in [Header::Each, Header::Spp] {
        let offloaded = upgrade_under_load(header, 10, &["--data-path=kernel"]);
        assert!(offloaded > 0, "nothing was offloaded");
    }
}

/// Asserts that upgrades lose no datagram; returns how many datagrams the kernel carried for the last process.
fn upgrade_under_load(header: Header, count: usize, further: &[&str]) -> u64 {
    let lab = Lab::new();
    let usual = PROXY_ARGS.iter().copied().filter(|arg| *arg != "-v");
    let dialect = format!("--udp-header={}", header.dialect());
    let args: Vec<_> = usual
        .chain(["--protocol=udp", "--upgrade-timeout=4s", &dialect])
        .chain(further.iter().copied())
        .collect();
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let load = UdpLoad::start(&lab, header);
    let between = || load.wait_answered(500);
    rig.upgrade_repeatedly(&lab.server, count, &Binary::BROKEN, between);
    let (sent, answered) = load.finish();
    rig.wait_drained();
    rig.signal(Signal::TERM);
    let totals = rig.wait_totals();
    eprintln!("{header:?}: {count} upgrades, {sent} datagrams, {answered} answers; {totals}");
    assert_eq!(totals["datagrams_dropped"], "", "{totals}");
    assert_eq!(answered, sent, "{}", rig.processes.log());
    totals["datagrams_in_kernel"].as_u64().expect("a number")
}

/// The sockets of a listener stay the same, so clients are steered to the same sockets with another number of workers.
#[test]
fn number_of_workers_may_change_with_sessions_open() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let config = |workers| {
        let text = format!(
            "workers = {workers}\n[[listen]]\naddress = [\"{LISTEN_V4}\"]\nprotocol = \"udp\"\ntarget-v4 = \
             \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
        );
        scratch.write("proxy.toml", &text)
    };
    let option = format!("--config={}", config(3));
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &option]);
    let load = UdpLoad::start(&lab, Header::Each);
    for workers in [1, 4, 2] {
        load.wait_answered(500);
        config(workers);
        rig.upgrade(&lab.server).expect("it upgrades");
    }
    load.wait_answered(500);
    let (sent, answered) = load.finish();
    assert_eq!(answered, sent, "{}", rig.processes.log());
}

/// An upgrade that changes the dialect of a listener is refused; one that removes the listener is not.
#[test]
fn changed_dialect_is_refused() {
    let lab = Lab::new();
    let scratch = Scratch::new();
    let config = |port, dialect| {
        let text = format!(
            "[[listen]]\naddress = [\"10.81.0.1:{port}\"]\nprotocol = \"udp\"\nudp-header = \"{dialect}\"\ntarget-v4 = \
             \"{TARGET_V4}\"\ntrust = [\"10.81.0.0/24\"]\n"
        );
        scratch.write("proxy.toml", &text)
    };
    let option = format!("--config={}", config(8443, "each"));
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &option]);
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
    let client = fresh_client_v4();
    let assert_served = |port| {
        let to = SocketAddr::new(LISTEN_V4.ip(), port);
        balancer.round_trip(to, &datagram_header_for(client), &backend, client);
    };
    assert_served(8443);
    config(8443, "spp");
    let error = rig.upgrade(&lab.server).expect_err("a refusal");
    assert_contains(&error, &["can't change at an upgrade"]);
    assert_served(8443);
    config(8444, "each");
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.wait_drained();
    assert_served(8444);
}

/// While the old process drains an address that another one overlaps, it would receive datagrams of the other one's clients, and
/// refuse them. A reload ends its sessions at once.
#[test]
fn replacement_by_an_overlapping_address_is_refused() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let table = |ip| {
        format!(
            "[[listen]]\naddress = [\"{ip}:8443\"]\nprotocol = \"udp\"\ntarget-v4 = \"{TARGET_V4}\"\n\
             trust = [\"10.81.0.0/24\"]\n"
        )
    };
    let specific = table("10.81.0.1");
    let write = |tables: &str| scratch.write("proxy.toml", tables);
    let option = format!(
        "--config={}",
        write(&(specific.clone() + &table("0.0.0.0")))
    );
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &option]);
    let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
    let assert_served = || {
        let client = fresh_client_v4();
        balancer.round_trip(LISTEN_V4, &datagram_header_for(client), &backend, client);
    };
    let assert_refused = |rig: &mut UpgradeRig, ip| {
        write(&table(ip));
        let error = rig.upgrade(&lab.server).expect_err("a refusal");
        let why = format!("UDP at {ip}:8443 would get clients of ");
        assert_contains(&error, &[&why]);
        assert_served();
    };
    assert_refused(&mut rig, "0.0.0.0");
    assert_refused(&mut rig, "[::]");
    // The wildcard alone may be removed: the kernel prefers the specific address.
    write(&specific);
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.wait_drained();
    assert_served();
    assert_refused(&mut rig, "0.0.0.0");
    rig.signal(Signal::HUP);
    rig.processes.wait_logged("reloaded");
    assert_served();
    rig.upgrade(&lab.server).expect("it upgrades");
    assert_served();
}

/// Beside an address of IPv4, a socket for `[::]` is opened for IPv6 only, and gets no clients of other such addresses.
#[test]
fn address_beside_a_wildcard_for_ipv6_only_may_be_removed() {
    let (lab, scratch) = (Lab::new(), Scratch::new());
    let write = |addresses: &[&str]| {
        let table = |addr: &&str| {
            format!(
                "[[listen]]\naddress = [\"{addr}\"]\nprotocol = \"udp\"\ntarget-v4 = \"{TARGET_V4}\"\ntrust = [\"any\"]\n"
            )
        };
        let tables: String = addresses.iter().map(table).collect();
        scratch.write("proxy.toml", &tables)
    };
    let stay = ["[::]:8443", "10.81.0.1:8443"];
    let option = format!(
        "--config={}",
        write(&[&stay[..], &["127.0.0.1:8443"]].concat())
    );
    let mut rig = UpgradeRig::start(&lab.server, &["proxy", &option]);
    write(&stay);
    rig.upgrade(&lab.server).expect("it upgrades");
    rig.wait_drained();
}

/// `forward` hands its sessions over, too: the receiver sees the same sender. The new process does not count them as opened.
#[test]
fn forward_keeps_its_sessions() {
    let lab = Lab::new();
    let listen = SocketAddr::new(LISTEN_V4.ip(), 7000);
    let receiver = DatagramSocket::bind(&lab.server, TARGET_V4);
    let args = words(
        "forward --protocol=udp --listen=10.81.0.1:7000 --to=127.0.0.1:9000 \
         --udp-header=first",
    );
    let mut rig = UpgradeRig::start(&lab.server, &args);
    let client = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
    client.send(listen, &[b"one"]);
    let (bytes, from) = receiver.recv();
    assert!(
        bytes.len() > 3 && bytes.ends_with(b"one"),
        "the first datagram has a header"
    );
    for round in 0..3 {
        rig.upgrade(&lab.server).expect("it upgrades");
        rig.wait_drained();
        let text = format!("after upgrade {round}");
        client.send(listen, &[text.as_bytes()]);
        receiver.expect_datagram(text.as_bytes(), from);
        receiver.send(from, &[b"answer"]);
        client.expect_datagram(b"answer", listen);
    }
    rig.signal(Signal::TERM);
    let totals = rig.wait_totals();
    assert_eq!(totals["udp_sessions"], 0, "{totals}");
}
