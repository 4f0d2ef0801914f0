//! Probes of reply paths, working and broken.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use peername_proxy::reply_path::probe::ReplyPathError::{
    NoReply, NotRouted, Overridden, Permission, Rewritten,
};
use peername_proxy::reply_path::probe::{ProbeOutcome, probe};
use peername_proxy::routes::{self, Scope};
use peername_sys::process::caps::{self, CapabilitySet};
use peername_sys::socket::upstream::UpstreamSocket;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::{add_address, disable_ipv6, in_namespace, ip};

const V4: &str = "127.0.0.1:443";
const V6: &str = "[::1]:443";
const ANY_V4: &str = "127.0.0.1:0";

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn loopback_probe_fails_without_routes_and_succeeds_with_them() -> Result<()> {
    in_namespace(async || {
        for (target, all_ports) in [(V4, ANY_V4), ("127.0.0.9:1", ANY_V4), (V6, "[::1]:0")] {
            let target = address(target);
            let broken = probe(target).await.unwrap_err();
            assert!(matches!(broken, NoReply { .. }), "{broken}");
            routes::add(&[target]).await?;
            assert_eq!(probe(target).await?, ProbeOutcome::RouteFound);
            let other_port = SocketAddr::new(target.ip(), 8081);
            assert!(probe(other_port).await.is_err());
            routes::add(&[address(all_ports)]).await?;
            assert_eq!(probe(target).await?, ProbeOutcome::Connected);
            assert_eq!(probe(other_port).await?, ProbeOutcome::Connected);
            routes::remove(Scope::Idle).await?;
            let broken = probe(target).await.unwrap_err();
            assert!(matches!(broken, NoReply { .. }), "{broken}");
        }
        Ok(())
    })
}

#[test]
fn error_names_the_command_that_adds_the_rule() -> Result<()> {
    in_namespace(async || {
        for (target, command) in [
            (V4, "`peername routes add --target 127.0.0.1:443`"),
            (V6, "`peername routes add --target '[::1]:443'`"),
        ] {
            let broken = probe(address(target)).await.unwrap_err().to_string();
            assert!(broken.contains(command), "{broken}");
            assert!(broken.contains("--setup-routes"), "{broken}");
            let of_all = "(without --target: for all backends on loopback)";
            assert!(broken.contains(of_all), "{broken}");
        }
        Ok(())
    })
}

#[test]
fn rule_without_its_route_is_reported_as_overridden() -> Result<()> {
    in_namespace(async || {
        routes::add(&[address(V4)]).await?;
        ip("-4 route flush table 21100")?;
        let broken = probe(address(V4)).await.unwrap_err();
        assert!(matches!(broken, Overridden { .. }), "{broken}");
        Ok(())
    })
}

#[test]
fn probe_needs_only_net_raw() -> Result<()> {
    in_namespace(async || {
        add_address("10.9.0.1", "24").await?;
        routes::add(&[address(V4), address("10.9.0.1:443")]).await?;
        caps::keep_only(CapabilitySet::NET_RAW)?;
        for target in [V4, "10.9.0.1:443"] {
            assert_eq!(probe(address(target)).await?, ProbeOutcome::RouteFound);
        }
        Ok(())
    })
}

#[test]
fn error_names_missing_net_raw() -> Result<()> {
    in_namespace(async || {
        caps::keep_only(CapabilitySet::empty())?;
        let broken = probe(address(V4)).await.unwrap_err();
        assert!(matches!(broken, Permission(_)), "{broken}");
        assert!(broken.to_string().contains("needs CAP_NET_RAW"), "{broken}");
        Ok(())
    })
}

#[test]
fn route_of_another_local_address_is_looked_up_with_its_port() -> Result<()> {
    in_namespace(async || {
        add_address("10.9.0.1", "24").await?;
        add_address("fd09::1", "64").await?;
        for target in ["10.9.0.1:8080", "[fd09::1]:8080"] {
            let target = address(target);
            let broken = probe(target).await.unwrap_err();
            assert!(matches!(broken, NotRouted { .. }), "{broken}");
            routes::add(&[target]).await?;
            assert_eq!(probe(target).await?, ProbeOutcome::RouteFound);
            let other_port = SocketAddr::new(target.ip(), 8081);
            assert!(
                probe(other_port).await.is_err(),
                "no rule for port 8081 was added"
            );
        }
        Ok(())
    })
}

/// Hosts that discard bogons have such a route for the documentation address, which stands for all clients.
#[test]
fn blackhole_route_counts_as_no_reply_path() -> Result<()> {
    in_namespace(async || {
        add_address("10.9.0.1", "24").await?;
        add_address("fd09::1", "64").await?;
        for kind in ["blackhole", "prohibit", "unreachable", "throw"] {
            for (family, target) in [("-4", "10.9.0.1:443"), ("-6", "[fd09::1]:443")] {
                ip(&format!("{family} route replace {kind} default"))?;
                let broken = probe(address(target)).await.unwrap_err();
                assert!(matches!(broken, NotRouted { .. }), "{kind}: {broken}");
            }
        }
        Ok(())
    })
}

/// The path of real packets. The result of the route lookup, which the tests above check, must agree with it.
#[test]
fn backend_on_another_address_of_this_host_is_reached_from_a_spoofed_address() -> Result<()> {
    in_namespace(async || {
        add_address("10.9.0.1", "24").await?;
        add_address("fd09::1", "64").await?;
        for (backend, client) in [
            ("10.9.0.1:8080", "192.0.2.1:4000"),
            ("[fd09::1]:8080", "[2001:db8::1]:4000"),
        ] {
            let listener = TcpListener::bind(backend).await?;
            routes::add(&[address(backend)]).await?;
            let socket = UpstreamSocket::new_tcp(address(backend))?;
            socket.set_transparent()?;
            socket.bind(address(client))?;
            let _connection = socket.connect(address(backend))?;
            let (_, peer) = timeout(Duration::from_secs(2), listener.accept()).await??;
            assert_eq!(peer, address(client));
        }
        Ok(())
    })
}

/// Needs the `nft` binary.
#[test]
fn rewritten_source_is_detected() -> Result<()> {
    in_namespace(async || {
        routes::add(&[address(ANY_V4)]).await?;
        for words in [
            "add table ip filter",
            "add chain ip filter out { type nat hook postrouting priority srcnat; }",
            "add rule ip filter out ip saddr 192.0.2.0/24 snat to 127.0.0.77",
        ] {
            assert!(
                Command::new("nft").arg(words).status()?.success(),
                "{words}"
            );
        }
        let broken = probe(address(V4)).await.unwrap_err();
        assert!(matches!(broken, Rewritten { .. }), "{broken}");
        assert!(
            broken.to_string().contains("would see 127.0.0.77:"),
            "{broken}"
        );
        Ok(())
    })
}

#[test]
fn backend_on_another_host_is_not_probed() -> Result<()> {
    in_namespace(async || {
        assert_eq!(
            probe(address("10.9.0.1:80")).await?,
            ProbeOutcome::OtherHost
        );
        Ok(())
    })
}

#[test]
fn probe_of_ipv6_backend_succeeds_without_ipv6() -> Result<()> {
    in_namespace(async || {
        disable_ipv6()?;
        assert_eq!(probe(address(V6)).await?, ProbeOutcome::NoIpv6);
        Ok(())
    })
}
