//! `docs/tproxy.md` behind HAProxy: its first set-up serves clients, its second one refuses them.

use super::follow::{Network, follow, start};
use crate::harness::addr::addr;
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Host, Process, Scratch};
use crate::harness::page::Page;
use crate::harness::peername::BINARY;

const PAGE: Page = Page::new(include_str!("../../../docs/tproxy.md"));

/// HAProxy, as the page configures it, on a balancer between a client and the host.
struct HaproxyLab {
    client: Host,
    _haproxy: Process,
    host: Host,
    _scratch: Scratch,
    _balancer: Host,
}

impl HaproxyLab {
    fn new() -> Self {
        let Network {
            client,
            balancer,
            host,
        } = Network::new();
        let scratch = Scratch::new();
        let defaults = "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 9s\n  timeout server 9s\n";
        // Fewer ports than on the page, because a test may not open ten thousand sockets.
        let listen = PAGE.fenced("haproxy")[0].replace(":10000-20000", ":14321-14330");
        let config = scratch.write("haproxy.cfg", &format!("{defaults}{listen}"));
        let _haproxy = Process::start(&balancer, "haproxy", &["-db", "-f", &config])
            .wait_listening(&[addr("203.0.113.1:14321")]);
        Self {
            client,
            _haproxy,
            host,
            _scratch: scratch,
            _balancer: balancer,
        }
    }
}

#[test]
fn first_set_up_serves_behind_haproxy() {
    let lab = HaproxyLab::new();
    let backend = Backend::listen(&lab.host, addr("127.0.0.1:14321"));
    let _proxy = follow(PAGE, "host", &lab.host);
    let down = Conn::connect(&lab.client, addr("203.0.113.1:14321"));
    let up = backend.accept();
    assert_eq!(up.peer_addr(), down.local_addr());
    down.assert_reaches(&up, b"ping");
}

/// HAProxy writes its own address as the destination.
#[test]
fn destination_from_the_header_is_refused_behind_haproxy() {
    let lab = HaproxyLab::new();
    let blocks = PAGE.blocks();
    let routes: Vec<_> = blocks[0]
        .lines()
        .filter(|line| line.contains("routes add"))
        .collect();
    assert!(!routes.is_empty(), "the page adds no routes");
    for command in routes {
        lab.host
            .run("sh", &["-ec", &command.replace("peername", BINARY)]);
    }
    let section = PAGE.after("**The destination in the header**");
    let proxy = start(&lab.host, &[], &section.command("peername proxy"));
    let down = Conn::connect(&lab.client, addr("203.0.113.1:14321"));
    assert!(down.recv_to_end().0.is_empty());
    proxy.wait_logged("destination_not_listed");
}
