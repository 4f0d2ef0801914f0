//! This host's own addresses, and their changes.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use peername_proto::HostAddress;
use peername_server::own_addresses::OwnAddresses;
use peername_sys::process::caps::{self, CapabilitySet};
use tokio::time::{sleep, timeout};

use crate::{in_namespace, ip};

fn kind(own: &OwnAddresses, address: &str) -> Option<HostAddress> {
    let address: IpAddr = address.parse().unwrap();
    own.kind_of(address)
}

fn is_known(own: &OwnAddresses, address: &str) -> bool {
    kind(own, address).is_some()
}

#[test]
fn addresses_and_both_ends_of_their_networks_are_recognized() -> Result<()> {
    in_namespace(async || {
        ip("link add name lan type veth peer name far")?;
        ip("address add 10.1.2.3/24 broadcast 10.1.2.99 dev lan")?;
        ip("address add 10.7.0.1 peer 192.168.7.2/30 dev lan")?;
        ip("address add fd01::5/64 dev lan nodad")?;
        caps::keep_only(CapabilitySet::empty())?;
        let own = OwnAddresses::read().await?;
        for address in [
            "127.0.0.1",
            "::1",
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "10.7.0.1",
            "fd01::5",
        ] {
            assert_eq!(kind(&own, address), Some(HostAddress::Own), "{address}");
        }
        for address in [
            "127.0.0.0",
            "127.255.255.255",
            "10.1.2.0",
            "10.1.2.255",
            "10.1.2.99",
            "::ffff:10.1.2.255",
            "192.168.7.0",
            "192.168.7.3",
            "fd01::",
        ] {
            assert_eq!(
                kind(&own, address),
                Some(HostAddress::NetworkOrBroadcast),
                "{address}"
            );
        }
        for address in [
            "10.1.2.4",
            "10.7.0.2",
            "192.168.7.2",
            "fd01::6",
            "192.0.2.1",
        ] {
            assert!(!is_known(&own, address), "{address} in {own:?}");
        }
        Ok(())
    })
}

#[test]
fn added_and_removed_interface_addresses_are_followed() -> Result<()> {
    in_namespace(async || {
        let own = OwnAddresses::read().await?;
        let watched = own.clone();
        let watcher = tokio::spawn(async move { watched.watch().await });
        for _ in 0..3 {
            ip("address add 10.1.2.3/24 dev lo")?;
            ip("address add fd01::5/64 dev lo nodad")?;
            wait_until(|| {
                is_known(&own, "10.1.2.3")
                    && is_known(&own, "10.1.2.255")
                    && is_known(&own, "fd01::5")
            })
            .await?;
            ip("address del 10.1.2.3/24 dev lo")?;
            wait_until(|| !is_known(&own, "10.1.2.3") && !is_known(&own, "10.1.2.255")).await?;
            ip("address del fd01::5/64 dev lo")?;
            wait_until(|| !is_known(&own, "fd01::5")).await?;
        }
        ensure!(!watcher.is_finished(), "{:?}", watcher.await);
        Ok(())
    })
}

/// No interface has these addresses (AnyIP). A table that a rule selects only for some packets is ignored, because peername's
/// own table is of that kind and makes all addresses local.
#[test]
fn address_with_a_local_route_is_own() -> Result<()> {
    in_namespace(async || {
        ip("route add local 198.51.100.0/24 dev lo")?;
        ip("-6 route add local 2001:db8:1::/48 dev lo")?;
        for family in ["-4", "-6"] {
            ip(&format!(
                "{family} route add local default dev lo table 21100"
            ))?;
            ip(&format!("{family} rule add fwmark 7 lookup 21100"))?;
        }
        let own = OwnAddresses::read().await?;
        for address in [
            "198.51.100.7",
            "::ffff:198.51.100.7",
            "2001:db8:1::7",
            "127.3.2.1",
        ] {
            assert_eq!(kind(&own, address), Some(HostAddress::Own), "{address}");
        }
        for address in ["198.51.101.7", "192.0.2.1", "2001:db8:2::7"] {
            assert!(!is_known(&own, address), "{address} in {own:?}");
        }
        Ok(())
    })
}

#[test]
fn added_and_removed_local_routes_are_followed() -> Result<()> {
    in_namespace(async || {
        let own = OwnAddresses::read().await?;
        let watched = own.clone();
        let watcher = tokio::spawn(async move { watched.watch().await });
        for network in [
            "198.51.100.7",
            "198.51.100.0/24",
            "2001:db8:1::/48",
            "2001:db8:1::7",
        ] {
            let address = if network.contains(':') {
                "2001:db8:1::7"
            } else {
                "198.51.100.7"
            };
            assert!(!is_known(&own, address));
            ip(&format!("route add local {network} dev lo"))?;
            wait_until(|| kind(&own, address) == Some(HostAddress::Own)).await?;
            ip(&format!("route del local {network} dev lo"))?;
            wait_until(|| !is_known(&own, address)).await?;
        }
        ensure!(!watcher.is_finished(), "{:?}", watcher.await);
        Ok(())
    })
}

#[test]
fn change_between_reading_and_watching_is_not_missed() -> Result<()> {
    in_namespace(async || {
        let own = OwnAddresses::read().await?;
        ip("address add 10.1.2.3/24 dev lo")?;
        assert!(!is_known(&own, "10.1.2.3"));
        let watched = own.clone();
        tokio::spawn(async move { watched.watch().await });
        wait_until(|| is_known(&own, "10.1.2.3")).await
    })
}

/// A new address is known as soon as the kernel notifies, not after thousands have been read again.
#[test]
fn new_address_among_thousands_is_known_at_once() -> Result<()> {
    in_namespace(async || {
        let script = "for a in $(seq 0 15); do for b in $(seq 0 249); do \
            echo address add 10.9.$a.$b/32 dev lo; done; done | ip -batch -";
        let added = std::process::Command::new("sh")
            .args(["-ec", script])
            .status()?;
        ensure!(added.success());
        let own = OwnAddresses::read().await?;
        let watched = own.clone();
        tokio::spawn(async move { watched.watch().await });
        let mut tries = Vec::new();
        for last in 1..=20 {
            let start = Instant::now();
            OwnAddresses::read().await?;
            let reading = start.elapsed();
            let address = format!("10.8.0.{last}");
            ip(&format!("address add {address}/32 dev lo"))?;
            let start = Instant::now();
            while !is_known(&own, &address) {
                tokio::task::yield_now().await;
            }
            let known = start.elapsed();
            if known < reading / 4 {
                return Ok(());
            }
            tries.push((known, reading));
        }
        ensure!(false, "{tries:?}");
        Ok(())
    })
}

async fn wait_until(condition: impl Fn() -> bool) -> Result<()> {
    let poll = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(timeout(Duration::from_secs(2), poll).await?)
}
