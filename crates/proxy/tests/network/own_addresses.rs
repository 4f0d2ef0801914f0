//! This host's own addresses, as they come and go.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use peername_proxy::own_addresses::{Kind, OwnAddresses};
use peername_sys::caps;
use tokio::time::{sleep, timeout};

use crate::{in_namespace, ip};

fn kind(own: &OwnAddresses, address: &str) -> Option<Kind> {
    let address: IpAddr = address.parse().unwrap();
    own.kind_of(address)
}

fn has(own: &OwnAddresses, address: &str) -> bool {
    kind(own, address).is_some()
}

#[test]
fn addresses_and_both_ends_of_their_networks_are_known() -> Result<()> {
    in_namespace(async || {
        ip("address add 10.1.2.3/24 broadcast 10.1.2.99 dev lo")?;
        ip("address add 10.7.0.1 peer 192.168.7.2/30 dev lo")?;
        ip("address add fd01::5/64 dev lo nodad")?;
        caps::keep_only(&[])?;
        let own = OwnAddresses::read().await?;
        for address in [
            "127.0.0.1",
            "::1",
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "10.7.0.1",
            "fd01::5",
        ] {
            assert_eq!(kind(&own, address), Some(Kind::Own), "{address}");
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
            assert_eq!(kind(&own, address), Some(Kind::End), "{address}");
        }
        for address in [
            "10.1.2.4",
            "10.7.0.2",
            "192.168.7.2",
            "fd01::6",
            "192.0.2.1",
        ] {
            assert!(!has(&own, address), "{address} in {own:?}");
        }
        Ok(())
    })
}

#[test]
fn a_watched_set_follows_the_interfaces() -> Result<()> {
    in_namespace(async || {
        let own = OwnAddresses::read().await?;
        let watched = own.clone();
        let watcher = tokio::spawn(async move { watched.watch().await });
        for _ in 0..3 {
            ip("address add 10.1.2.3/24 dev lo")?;
            ip("address add fd01::5/64 dev lo nodad")?;
            until(|| has(&own, "10.1.2.3") && has(&own, "10.1.2.255") && has(&own, "fd01::5"))
                .await?;
            ip("address del 10.1.2.3/24 dev lo")?;
            until(|| !has(&own, "10.1.2.3") && !has(&own, "10.1.2.255")).await?;
            ip("address del fd01::5/64 dev lo")?;
            until(|| !has(&own, "fd01::5")).await?;
        }
        ensure!(!watcher.is_finished(), "{:?}", watcher.await);
        Ok(())
    })
}

#[test]
fn what_came_between_reading_and_watching_is_not_missed() -> Result<()> {
    in_namespace(async || {
        let own = OwnAddresses::read().await?;
        ip("address add 10.1.2.3/24 dev lo")?;
        assert!(!has(&own, "10.1.2.3"));
        let watched = own.clone();
        tokio::spawn(async move { watched.watch().await });
        until(|| has(&own, "10.1.2.3")).await
    })
}

async fn until(come_true: impl Fn() -> bool) -> Result<()> {
    let poll = async {
        while !come_true() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(timeout(Duration::from_secs(2), poll).await?)
}
