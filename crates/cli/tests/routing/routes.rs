//! `peername routes`.

use anyhow::Result;
use peername_sys::process::caps::{self, CapabilitySet};

use crate::{in_namespace, ip, run, run_to_failure};

const ADDED: &str = "\
2110: from 127.0.0.0/8 iif lo lookup 21100 proto 211  # made by `routes add`
2110: from ::1/128 iif lo lookup 21100 proto 211  # made by `routes add`
local 0.0.0.0/0 dev lo table 21100 proto 211  # made by `routes add`
local ::/0 dev lo table 21100 proto 211  # made by `routes add`
table inet peername_untracked_21100: ip daddr 127.0.0.0/8 ip saddr != 127.0.0.0/8 notrack  # made by `routes add`
table inet peername_untracked_21100: oifname \"lo\" ip saddr 127.0.0.0/8 ip daddr != 127.0.0.0/8 notrack  # made by `routes add`
table inet peername_untracked_21100: ip6 daddr ::1 ip6 saddr != ::1 notrack  # made by `routes add`
table inet peername_untracked_21100: oifname \"lo\" ip6 saddr ::1 ip6 daddr != ::1 notrack  # made by `routes add`
";

#[test]
fn added_routes_are_shown_and_removed() -> Result<()> {
    in_namespace(|| {
        let before = ip("rule")?;
        assert_eq!(run("routes show", 0)?, "");
        assert_eq!(run("routes add", 0)?, ADDED);
        assert_eq!(run("routes add", 0)?, ADDED);
        assert_eq!(run("routes show", 0)?, ADDED);
        let removed = run("routes remove", 0)?;
        let expected: String = ADDED
            .lines()
            .map(|line| format!("removed {line}\n"))
            .collect();
        assert_eq!(removed, expected);
        assert_eq!(run("routes remove --all", 0)?, "");
        assert_eq!(ip("rule")?, before);
        Ok(())
    })
}

#[test]
fn shown_lines_are_valid_arguments_of_ip() -> Result<()> {
    in_namespace(|| {
        ip("address add 10.9.0.1/24 dev lo")?;
        let shown = run("routes add -4 10.9.0.1:8080", 0)?;
        run("routes remove", 0)?;
        let is_routing = |line: &&str| !line.starts_with("table inet ");
        for line in shown.lines().filter(is_routing) {
            let (line, _owner) = line.split_once("  # ").expect("a comment");
            let family = if line.contains("::") { "-6" } else { "-4" };
            match line.split_once(": ") {
                Some((priority, rule)) => {
                    let rule = rule.replace(" proto ", " protocol ");
                    ip(&format!("{family} rule add pref {priority} {rule}"))?;
                }
                None => drop(ip(&format!("{family} route add {line}"))?),
            }
        }
        let routing: Vec<&str> = shown.lines().filter(is_routing).collect();
        assert_eq!(run("routes show", 0)?.lines().collect::<Vec<_>>(), routing);
        Ok(())
    })
}

#[test]
fn backend_on_another_host_is_an_error_with_a_remedy() -> Result<()> {
    in_namespace(|| {
        let message = run_to_failure("routes add -4 10.9.0.1:80")?;
        assert!(
            message.contains("10.9.0.1:80 is not on this host"),
            "{message}"
        );
        assert!(message.contains("docs/routes.md"), "{message}");
        Ok(())
    })
}

#[test]
fn missing_capability_is_named() -> Result<()> {
    in_namespace(|| {
        caps::keep_only(CapabilitySet::empty())?;
        let message = run_to_failure("routes add")?;
        assert!(message.contains("CAP_NET_ADMIN"), "{message}");
        assert!(
            message.contains("run `peername routes add` with these options as root"),
            "{message}"
        );
        assert!(!message.contains("--setup-routes"), "{message}");
        assert_eq!(run("routes show", 0)?, "");
        Ok(())
    })
}

#[test]
fn removal_without_the_capability_names_its_own_command() -> Result<()> {
    in_namespace(|| {
        run("routes add", 0)?;
        caps::keep_only(CapabilitySet::empty())?;
        for command in ["routes remove", "routes remove --all"] {
            let message = run_to_failure(command)?;
            assert!(message.contains("CAP_NET_ADMIN"), "{message}");
            assert!(
                message.contains(&format!("; run `peername {command}` as root")),
                "{message}"
            );
            assert!(!message.contains("routes add"), "{message}");
        }
        // Tables can't be listed without it.
        let shown = run("routes show", 0)?;
        assert!(!shown.is_empty() && ADDED.starts_with(&shown), "{shown}");
        Ok(())
    })
}

/// `proxy --setup-routes` needs no privilege where an administrator has added the rules before.
#[test]
fn setup_without_the_capability_names_what_replaces_it() -> Result<()> {
    in_namespace(|| {
        // What the proxy needs itself; the keeper has no more.
        caps::keep_only(CapabilitySet::NET_RAW)?;
        let message = run_to_failure(
            "proxy --target=127.0.0.1:443 --setup-routes --trust loopback --listen 127.0.0.1:8443",
        )?;
        assert!(
            message.contains("run `peername routes add` once as root"),
            "{message}"
        );
        assert!(message.contains("without `--setup-routes`"), "{message}");
        Ok(())
    })
}

#[test]
fn keeper_is_hidden_from_help() -> Result<()> {
    assert!(!run("routes --help", 0)?.contains("keep"));
    run("routes keep", 2)?;
    Ok(())
}
