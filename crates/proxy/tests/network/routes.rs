//! The administrator's rules and routes.

use std::net::SocketAddr;

use anyhow::Result;
use peername_proxy::routes::{self, EntryOwner, Error, Scope};

use crate::{add_address, disable_ipv6, in_namespace, ip, rules_and_routes};

const LOOPBACK: [&str; 2] = ["127.0.0.1:443", "[::1]:443"];

/// Adds rules for these backends. Returns the skipped ones.
async fn add(targets: &[&str]) -> Result<Vec<String>, Error> {
    let targets: Vec<_> = targets
        .iter()
        .map(|text| text.parse::<SocketAddr>().unwrap())
        .collect();
    let skipped = routes::add(&targets).await?;
    Ok(skipped.iter().map(ToString::to_string).collect())
}

/// Lists peername's entries, all of which must be the administrator's.
async fn list_entries() -> Result<Vec<String>> {
    let entries = routes::list().await?;
    assert!(
        entries
            .iter()
            .all(|entry| entry.owner == EntryOwner::Administrator)
    );
    Ok(entries.iter().map(ToString::to_string).collect())
}

#[test]
fn add_creates_the_documented_rules_and_routes() -> Result<()> {
    in_namespace(async || {
        add(&LOOPBACK).await?;
        let v4 = ip("-4 rule")?;
        assert!(
            v4.contains(
                "2110:\tfrom 127.0.0.0/8 iif lo ipproto tcp sport 443 lookup 21100 proto 211\n"
            ),
            "{v4}"
        );
        let v6 = ip("-6 rule")?;
        let rule = "2110:\tfrom ::1 iif lo ipproto tcp sport 443 lookup 21100";
        assert!(v6.contains(rule), "{v6}");
        let v4 = ip("-4 route show table 21100")?;
        assert_eq!(v4.trim_end(), "local default dev lo proto 211 scope host");
        let v6 = ip("-6 route show table 21100")?;
        assert!(v6.starts_with("local default dev lo proto 211 "), "{v6}");
        Ok(())
    })
}

#[test]
fn add_restores_missing_entries() -> Result<()> {
    in_namespace(async || {
        add(&LOOPBACK).await?;
        let complete = rules_and_routes()?;
        ip("-4 route flush table 21100")?;
        ip("-6 rule del pref 2110")?;
        assert_ne!(rules_and_routes()?, complete);
        add(&LOOPBACK).await?;
        assert_eq!(rules_and_routes()?, complete);
        Ok(())
    })
}

#[test]
fn remove_leaves_foreign_entries() -> Result<()> {
    in_namespace(async || {
        ip("-4 rule add pref 2109 from 127.0.0.0/8 iif lo lookup 21100")?;
        ip("-4 rule add pref 2111 from 10.0.0.0/8 lookup 21101 protocol static")?;
        ip("-4 route add local 10.0.0.0/8 dev lo table 21100")?;
        let before = rules_and_routes()?;
        add(&LOOPBACK).await?;
        assert_ne!(rules_and_routes()?, before);
        let removed = routes::remove(Scope::Idle).await?;
        assert_eq!(removed.len(), 4);
        assert_eq!(rules_and_routes()?, before);
        assert_eq!(routes::remove(Scope::All).await?, []);
        Ok(())
    })
}

#[test]
fn only_the_port_of_another_address_of_this_host_is_routed() -> Result<()> {
    in_namespace(async || {
        add_address("10.9.0.1", "24").await?;
        add_address("fd09::1", "64").await?;
        add(&["10.9.0.1:8080", "[fd09::1]:8080"]).await?;
        let v4 = ip("-4 rule")?;
        let rule = "from 10.9.0.1 iif lo ipproto tcp sport 8080 lookup 21100 proto 211";
        assert!(v4.contains(rule), "{v4}");
        let v6 = ip("-6 rule")?;
        let rule = "from fd09::1 iif lo ipproto tcp sport 8080 lookup 21100";
        assert!(v6.contains(rule), "{v6}");
        assert_eq!(list_entries().await?.len(), 4);
        routes::remove(Scope::Idle).await?;
        assert_eq!(list_entries().await?, [""; 0]);
        Ok(())
    })
}

#[test]
fn address_that_was_just_added_is_local() -> Result<()> {
    in_namespace(async || {
        for _ in 0..20 {
            ip("address add fd09::1/64 dev lo")?;
            add(&["[fd09::1]:8080"]).await?;
            ip("address del fd09::1/64 dev lo")?;
        }
        Ok(())
    })
}

#[test]
fn backend_on_another_host_is_refused_before_any_change() -> Result<()> {
    in_namespace(async || {
        let before = rules_and_routes()?;
        let error = add(&["127.0.0.1:443", "10.9.0.1:443"]).await.unwrap_err();
        assert!(matches!(error, Error::OtherHost(_)), "{error}");
        assert!(error.to_string().contains("10.9.0.1:443"), "{error}");
        assert_eq!(rules_and_routes()?, before);
        Ok(())
    })
}

#[test]
fn ipv4_entries_are_added_without_ipv6() -> Result<()> {
    in_namespace(async || {
        disable_ipv6()?;
        assert_eq!(add(&LOOPBACK).await?, ["[::1]:443"]);
        assert_eq!(list_entries().await?.len(), 2);
        let error = add(&["[::1]:443"]).await.unwrap_err();
        assert!(matches!(error, Error::NoIpv6), "{error}");
        Ok(())
    })
}
