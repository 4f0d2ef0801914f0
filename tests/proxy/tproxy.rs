//! TPROXY: rules redirect many ports of a host to one listener. The rules are those of go-mmproxy's README, word for word, and
//! those that `peername routes add` adds.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::harness::addr::{BALANCER_V4, BALANCER_V6, addr, fresh_client_like, v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes::{v1, v2, v2_udp};
use crate::harness::lab::{
    Host, Lab, Scratch, assert_contains, assert_fails, assert_succeeds, stderr_text, stdout_text,
    with_files,
};
use crate::harness::peername::{AS_NOBODY, BINARY, Peername, copy_executable, words};

mod loopback;
mod udp;

/// The section "Routing multiple ports" of go-mmproxy's README, and its command line with peername's option
/// names.
#[test]
fn go_mmproxys_tproxy_rules_work() {
    let lab = Lab::without_routes();
    let rules = "
        ip rule add from 127.0.0.1/8 iif lo table 123
        ip route add local 0.0.0.0/0 dev lo table 123
        iptables -t mangle -A PREROUTING -p tcp --dport 10000:20000 -j TPROXY \\
          --tproxy-mark 0x1/0x1 --on-port 25577 --on-ip 127.0.0.1
        ip rule add fwmark 1 lookup 123";
    lab.server.run("sh", &["-ec", rules]);
    let backend = Backend::listen(&lab.server, v4([127, 0, 0, 1], 25578));
    let _proxy = proxy(&lab.server, "tcp", &["--target-v4=127.0.0.1:25578"]);
    for port in [10_000, 14_321, 20_000] {
        assert_served(&lab.balancer, v4([10, 81, 0, 1], port), &backend);
    }
    // The port that the proxy itself listens on, and one outside the range.
    assert_served(&lab.balancer, v4([10, 81, 0, 1], 25_577), &backend);
    assert_refused(&lab.balancer, v4([10, 81, 0, 1], 20_001));
}

/// A redirected connection goes to the destination in its header.
#[test]
fn tproxy_works_with_the_destination_from_the_header() {
    let lab = Lab::new();
    add_routes(
        &lab.server,
        &["--tproxy-ports=10000-20000", "--tproxy-to=25577"],
    );
    let args = words(
        "--dynamic-destination --allow-destination=127.0.0.1:10000-20000 \
         --allow-destination=[::1]:10000-20000",
    );
    let proxy = proxy(&lab.server, "tcp", &args);
    for (to, target) in [
        ("10.81.0.1:14321", "127.0.0.1:14321"),
        ("[fd81::1]:14321", "[::1]:14321"),
        ("10.81.0.1:20000", "127.0.0.1:20000"),
    ] {
        let (to, target) = (addr(to), addr(target));
        let backend = Backend::listen(&lab.server, target);
        let client = fresh_client_like(target);
        let down = Conn::connect_and_send(&lab.balancer, to, &v2(client, target, &[]));
        let up = backend.accept_from(client);
        up.assert_reaches(&down, b"back");
        drop((up, down));
        // The log shows as listener the address that the balancer connected to.
        proxy.wait_logged(&format!("\"listener\":\"{to}\""));
    }
}

#[test]
fn tproxy_serves_tcp_and_udp_over_both_families() {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add_routes(
        &lab.server,
        &[ports, "--tproxy-to=25577", "--protocol=both"],
    );
    let targets = ["--target-v4=127.0.0.1:9000", "--target-v6=[::1]:9000"];
    let _proxy = proxy(&lab.server, "both", &targets);
    for (target, own, balancer) in [
        (addr("127.0.0.1:9000"), addr("10.81.0.1:0"), BALANCER_V4),
        (addr("[::1]:9000"), addr("[fd81::1]:0"), BALANCER_V6),
    ] {
        let backend = Backend::listen(&lab.server, target);
        let datagrams = DatagramSocket::bind(&lab.server, target);
        let balancer_socket = DatagramSocket::bind(&lab.balancer, SocketAddr::new(balancer, 0));
        for port in [10_000, 14_321, 20_000, 25_577] {
            let to = SocketAddr::new(own.ip(), port);
            assert_served(&lab.balancer, to, &backend);
            let client = fresh_client_like(to);
            for word in [b"one", b"two"] {
                balancer_socket.send(to, &[&v2_udp(client, to), word]);
                datagrams.expect_datagram(word, client);
                datagrams.send(client, &[b"back"]);
                // From the address that the datagram was sent to, with its port.
                balancer_socket.expect_datagram(b"back", to);
            }
        }
    }
}

/// `same` is the port that the balancer sent to. The listener's port would be wrong, because the target would be the proxy
/// itself if the proxy listened on loopback, too.
#[test]
fn target_port_same_is_the_original_destination_port() {
    let lab = Lab::new();
    let ports = "--tproxy-ports=10000-20000";
    add_routes(
        &lab.server,
        &[ports, "--tproxy-to=25577", "--protocol=both"],
    );
    let _proxy = Peername::start_listening(
        &lab.server,
        &words(
            "proxy --listen=10.81.0.1:25577 --listen=[fd81::1]:25577 --listen-transparent \
             --protocol=both --target-v4=127.0.0.1:same --target-v6=[::1]:same --trust=private",
        ),
    );
    for (own, loopback, balancer) in [
        ("10.81.0.1", "127.0.0.1", BALANCER_V4),
        ("[fd81::1]", "[::1]", BALANCER_V6),
    ] {
        for port in [10_000, 14_321] {
            let to = addr(&format!("{own}:{port}"));
            let target = addr(&format!("{loopback}:{port}"));
            assert_served(&lab.balancer, to, &Backend::listen(&lab.server, target));
            let backend = DatagramSocket::bind(&lab.server, target);
            let balancer = DatagramSocket::bind(&lab.balancer, SocketAddr::new(balancer, 0));
            let client = fresh_client_like(to);
            balancer.round_trip(to, &v2_udp(client, to), &backend, client);
        }
    }
}

/// Behind TPROXY rules `doctor` can't test the target port `same`, because clients choose it. Without them, it tests each port
/// of the listeners.
#[test]
fn doctor_connects_to_no_port_that_clients_choose() {
    let host = Host::new();
    add_routes(
        &host,
        &words("--tproxy-ports=10000-20000 --tproxy-to=25577 --protocol=both"),
    );
    let doctor = |line: &str| stdout_text(&Peername::run(&host, &words(&format!("doctor {line}"))));
    let scratch = Scratch::new();
    let file = scratch.write(
        "proxy.toml",
        "[[listen]]\nlisten = \"127.0.0.9:25577\"\nlisten-transparent = true\nprotocol = \"both\"\n\
         target = [\"127.0.0.1:same\", \"[::1]:same\"]\ntrust = \"192.0.2.10\"\n",
    );
    for line in [
        format!("--config={file}"),
        "--listen=127.0.0.9:25577 --protocol=both --target=127.0.0.1:same --target=[::1]:same"
            .to_owned(),
    ] {
        let report = doctor(&line);
        for target in ["127.0.0.1:same", "[::1]:same"] {
            let found =
                format!("ok    backend: {target} is not connected to: clients choose the port");
            assert_contains(&report, &[&found]);
        }
        for wrong in ["FAIL  backend", "backend's UDP socket"] {
            assert!(!report.contains(wrong), "{report}");
        }
    }
    let report = doctor("--listen=127.0.0.9:10005-10006 --target=127.0.0.1:same");
    for port in [10_005, 10_006] {
        let refused = format!("FAIL  backend: 127.0.0.1:{port}: Connection refused");
        assert_contains(
            &report,
            &[&refused, &format!("TCP 127.0.0.9:{port} is free")],
        );
    }
}

/// Other traffic of the host to or from these ports is not affected: connections of the host to itself, connections older than
/// the rules, and connections from one of the ports.
#[test]
fn tproxy_rules_affect_only_inbound_traffic_to_the_ports() {
    let lab = Lab::new();
    let older = Backend::listen(&lab.server, v4([10, 81, 0, 1], 15_000));
    let older_client = Conn::connect(&lab.balancer, v4([10, 81, 0, 1], 15_000));
    let older_server = older.accept();
    add_routes(
        &lab.server,
        &["--tproxy-ports=10000-20000", "--tproxy-to=25577"],
    );
    let _proxy = proxy(&lab.server, "tcp", &["--target-v4=127.0.0.1:9000"]);
    older_client.assert_reaches(&older_server, b"still there");
    // From the host to itself.
    let own = Conn::connect(&lab.server, v4([10, 81, 0, 1], 15_000));
    own.send(b"mine");
    assert_eq!(older.accept().recv(4), b"mine");
    // From a port in the range to another host.
    let remote_server = Backend::listen(&lab.balancer, v4([10, 81, 0, 2], 9000));
    lab.server
        .sysctl("net.ipv4.ip_local_port_range", "16000 16000");
    let outgoing = Conn::connect(&lab.server, v4([10, 81, 0, 2], 9000));
    let incoming = remote_server.accept();
    assert_eq!(incoming.peer_addr().port(), 16_000);
    incoming.assert_reaches(&outgoing, b"answer");
}

/// A network that is routed to the host without being on any of its interfaces.
#[test]
fn tproxy_serves_destinations_that_are_no_local_address() {
    let lab = Lab::new();
    lab.balancer.ip("route add 192.0.2.0/24 via 10.81.0.1");
    lab.balancer.ip6("route add 2001:db8:2::/48 via fd81::1");
    add_routes(
        &lab.server,
        &words(
            "--tproxy-ports=10000-20000 --tproxy-to=25577 --tproxy-destination=192.0.2.0/24 \
             --tproxy-destination=2001:db8:2::/48 --protocol=both",
        ),
    );
    let targets = ["--target-v4=127.0.0.1:9000", "--target-v6=[::1]:9000"];
    let _proxy = proxy(&lab.server, "both", &targets);
    for (target, to, balancer) in [
        ("127.0.0.1:9000", "192.0.2.44:14321", BALANCER_V4),
        ("[::1]:9000", "[2001:db8:2::44]:14321", BALANCER_V6),
    ] {
        let (target, to) = (addr(target), addr(to));
        let backend = Backend::listen(&lab.server, target);
        assert_served(&lab.balancer, to, &backend);
        let datagrams = DatagramSocket::bind(&lab.server, target);
        let balancer_socket = DatagramSocket::bind(&lab.balancer, SocketAddr::new(balancer, 0));
        let client = fresh_client_like(to);
        balancer_socket.round_trip(to, &v2_udp(client, to), &datagrams, client);
    }
    assert_doctor_explains_src_valid_mark(&lab);
}

/// With src_valid_mark, the kernel looks up the reverse path with the mark, finds that every address is its own, and drops the
/// packet silently. `doctor` reports the setting if it is in force.
fn assert_doctor_explains_src_valid_mark(lab: &Lab) {
    let doctor = || {
        let args = words("doctor --target-v4=127.0.0.1:9000 --target-v6=[::1]:9000");
        stdout_text(&Peername::run(&lab.server, &args))
    };
    assert_contains(&doctor(), &["ok    firewall marks"]);
    // Interfaces created from now on would inherit it.
    lab.server
        .sysctl("net.ipv4.conf.default.src_valid_mark", "1");
    assert_contains(&doctor(), &["ok    firewall marks"]);
    lab.server.sysctl("net.ipv4.conf.all.src_valid_mark", "1");
    let to = addr("192.0.2.44:14321");
    let limit = Duration::from_millis(1500);
    let connected = lab
        .balancer
        .enter(|| TcpStream::connect_timeout(&to, limit));
    assert!(connected.is_err());
    // Traffic to an address of this host needs no mark.
    Conn::connect(&lab.balancer, addr("10.81.0.1:14321"));
    let report = doctor();
    let fix = "`sysctl -w net.ipv4.conf.all.src_valid_mark=0`";
    let line = report.lines().find(|line| line.contains("firewall marks:"));
    assert!(
        line.is_some_and(|line| line.starts_with("FAIL") && line.contains(fix)),
        "{report}"
    );
    lab.server.sysctl("net.ipv4.conf.all.src_valid_mark", "0");
    Conn::connect(&lab.balancer, to);
}

/// Adding rules twice makes no difference, each listener has rules of its own, and none is left when they are removed.
#[test]
fn tproxy_rules_are_added_shown_and_removed() {
    let host = Host::new();
    let before = host.run("nft", &["list", "ruleset"]);
    for _ in 0..2 {
        add_routes(&host, &["--tproxy-ports=10000-20000", "--tproxy-to=25577"]);
    }
    add_routes(
        &host,
        &words("--tproxy-ports=53 --tproxy-ports=5060-5061 --protocol=both"),
    );
    let doctor = Peername::run(&host, &["doctor"]);
    assert_contains(
        &stdout_text(&doctor),
        &["warn  TPROXY: rules redirect to port 25577, where nothing listens"],
    );
    let shown = assert_succeeds(&Peername::run(&host, &["routes", "show"]));
    for expected in [
        "table inet peername_tproxy_25577: iifname != \"lo\" tcp dport 10000-20000 ",
        "table inet peername_tproxy_8443: iifname != \"lo\" tcp dport { 53, 5060-5061 } ",
        "table inet peername_tproxy_8443: iifname != \"lo\" udp dport { 53, 5060-5061 } fib ",
    ] {
        assert_eq!(shown.matches(expected).count(), 1, "{expected} in {shown}");
    }
    // As after `su`, where PATH does not contain nft.
    let through = ["env", "PATH=/usr/bin:/bin", BINARY];
    let removed = Peername::run_with_input(&host, &through, &["routes", "remove"], "");
    let removed = stdout_text(&removed);
    assert_contains(&removed, &["removed table inet peername_tproxy_25577"]);
    assert_eq!(
        assert_succeeds(&Peername::run(&host, &["routes", "show"])),
        ""
    );
    assert_eq!(host.run("nft", &["list", "ruleset"]), before);
}

/// One table is removed by another process before its rules are listed, another table before it is deleted.
#[test]
fn table_that_another_process_has_removed_is_no_error() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let nft = scratch.path_text("nft");
    host.run("cp", &["/usr/sbin/nft", &nft]);
    let fake = format!(
        "#!/bin/sh\ncase \"$*\" in\n\
         'list tables inet') echo 'table inet peername_tproxy_1'; echo 'table inet peername_tproxy_2';;\n\
         '-s list table inet peername_tproxy_2') echo '        tcp dport 53 accept';;\n*) exec {nft} \"$@\";;\nesac\n"
    );
    let fake = scratch.write_program("fake", &fake);
    let with_fake_nft = [&with_files(&[(&fake, "/usr/sbin/nft")])[..], &[BINARY]].concat();
    let removed = Peername::run_with_input(&host, &with_fake_nft, &["routes", "remove"], "");
    assert!(removed.status.success(), "{removed:?}");
    assert_contains(
        &stdout_text(&removed),
        &["removed table inet peername_tproxy_2"],
    );
}

/// A kernel without nf_tables has no tables to remove. peername's routing rules are removed all the same.
#[test]
fn removing_rules_needs_no_nf_tables() {
    let (host, scratch) = (Host::new(), Scratch::new());
    add_routes(&host, &["--target-v4=127.0.0.1:9000"]);
    let nft = scratch.write_program(
        "nft",
        "#!/bin/sh\necho 'netlink: Error: Protocol not supported' >&2\nexit 1\n",
    );
    let without_nf_tables = [&with_files(&[(&nft, "/usr/sbin/nft")])[..], &[BINARY]].concat();
    assert_succeeds(&Peername::run_with_input(
        &host,
        &without_nf_tables,
        &["routes", "remove"],
        "",
    ));
    let left = assert_succeeds(&Peername::run(&host, &["routes", "show"]));
    assert!(
        !left.contains("lookup") && !left.contains("local "),
        "{left}"
    );
    // Commands that need nf_tables report that.
    let args = ["routes", "add", "--tproxy-ports=53"];
    let refused = Peername::run_with_input(&host, &without_nf_tables, &args, "");
    assert_fails(
        &refused,
        1,
        &["nft: netlink: Error: Protocol not supported"],
    );
}

/// nft does not inherit the file capabilities of peername's binary. Commands that need no nft succeed, with a note on what was
/// left out.
#[test]
fn file_capabilities_allow_rules_but_no_tables() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let copy = copy_executable(&host, &scratch);
    host.run("setcap", &["cap_net_admin+ep", &copy]);
    let as_nobody = [AS_NOBODY, &[&copy]].concat();
    let run = |args: &[&str]| {
        Peername::run_with_input(&host, &as_nobody, &[&["routes"], args].concat(), "")
    };
    let rule = "2110: from 127.0.0.0/8 iif lo ipproto tcp sport 9000 lookup 21100 proto 211";
    for (args, line) in [
        (&["add", "-4", "127.0.0.1:9000"][..], rule.to_owned()),
        (&["show"], rule.to_owned()),
        (&["remove"], format!("removed {rule}")),
    ] {
        let output = run(args);
        let printed = assert_succeeds(&output);
        assert!(printed.starts_with(&line), "{args:?}: {printed}");
        assert_contains(&stderr_text(&output), &["nft(8) has when root runs it"]);
    }
    let refused = run(&["add", "--tproxy-ports=53"]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}

#[test]
fn invalid_tproxy_options_are_explained() {
    let host = Host::new();
    for (args, hint) in [
        (&["--tproxy-ports=20000-10000"][..], "10000-20000"),
        (&["--tproxy-to=25577"], "--tproxy-ports"),
        (&["--tproxy-ports=53", "--tproxy-to=0"], "--tproxy-to"),
    ] {
        let error = Peername::run_failing(&host, &[&["routes", "add"], args].concat(), 2);
        assert!(error.contains(hint), "{error}");
    }
}

fn proxy(host: &Host, protocol: &str, args: &[&str]) -> Peername {
    let line = format!(
        "proxy --listen=0.0.0.0:25577 --listen=[::]:25577 --listen-transparent \
         --trust=10.81.0.0/24 --trust=fd81::/64 --log-format=json -v --protocol {protocol}"
    );
    let usual = words(&line);
    Peername::start_listening(host, &[&usual[..], args].concat())
}

fn add_routes(host: &Host, args: &[&str]) {
    assert_succeeds(&Peername::run(host, &[&["routes", "add"], args].concat()));
}

#[track_caller]
fn assert_served(balancer: &Host, to: SocketAddr, backend: &Backend) {
    let client = fresh_client_like(to);
    let down = Conn::connect_and_send(balancer, to, &v1(client, to));
    let up = backend.accept_from(client);
    up.assert_reaches(&down, b"back");
}

#[track_caller]
fn assert_refused(balancer: &Host, to: SocketAddr) {
    let connected = balancer.enter(|| TcpStream::connect(to));
    let kind = connected.map(drop).map_err(|error| error.kind());
    assert_eq!(kind, Err(ErrorKind::ConnectionRefused), "{to}");
}
