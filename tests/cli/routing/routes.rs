//! `peername routes`.

use super::{WITHOUT_CAPABILITIES, run, run_as};
use crate::harness::lab::{Host, Scratch, assert_contains, assert_fails, stderr_text};
use crate::harness::peername::{AS_NOBODY, Peername, copy_executable, words};

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
fn added_routes_are_shown_and_removed() {
    let host = Host::new();
    let before = host.routing_rules();
    assert_eq!(run(&host, "routes show", 0), "");
    assert_eq!(run(&host, "routes add", 0), ADDED);
    let once = host.routing_rules();
    assert_eq!(run(&host, "routes add", 0), ADDED);
    assert_eq!(host.routing_rules(), once);
    assert_eq!(run(&host, "routes show", 0), ADDED);
    let removed = run(&host, "routes remove", 0);
    let expected: String = ADDED
        .lines()
        .map(|line| format!("removed {line}\n"))
        .collect();
    assert_eq!(removed, expected);
    assert_eq!(run(&host, "routes remove --all", 0), "");
    assert_eq!(host.routing_rules(), before);
}

#[test]
fn shown_lines_are_valid_arguments_of_ip() {
    let host = Host::new();
    host.ip("address add 10.9.0.1/24 dev lo");
    let shown = run(&host, "routes add -4 10.9.0.1:8080", 0);
    run(&host, "routes remove", 0);
    let routing: Vec<&str> = shown
        .lines()
        .filter(|line| !line.starts_with("table inet "))
        .collect();
    for line in &routing {
        let (line, _owner) = line.split_once("  # ").expect("a comment");
        let command = match line.split_once(": ") {
            Some((priority, rule)) => {
                let rule = rule.replace(" proto ", " protocol ");
                format!("rule add pref {priority} {rule}")
            }
            None => format!("route add {line}"),
        };
        if line.contains("::") {
            host.ip6(&command);
        } else {
            host.ip(&command);
        }
    }
    let shown = run(&host, "routes show", 0);
    assert_eq!(shown.lines().collect::<Vec<_>>(), routing);
}

/// The rules of a mark have no address, by which the families could be told apart.
#[test]
fn rule_of_ipv6_for_a_mark_is_named() {
    let shown = run(&Host::new(), "routes add --mark 7", 0);
    let rules: Vec<_> = shown
        .lines()
        .filter(|line| line.contains(" fwmark "))
        .collect();
    let [v4, v6] = rules[..] else {
        panic!("{shown}");
    };
    assert!(v4.ends_with("  # made by `routes add`"), "{v4}");
    assert_eq!(v6, v4.replace("# made", "# IPv6, made"));
}

#[test]
fn backend_on_another_host_is_an_error_with_a_remedy() {
    let printed = Peername::run_failing(&Host::new(), &words("routes add -4 10.9.0.1:80"), 1);
    assert_contains(
        &printed,
        &["10.9.0.1:80 is not on this host", "docs/routes.md"],
    );
}

#[test]
fn missing_capability_is_named_with_the_commands_own_remedy() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let copy = copy_executable(&host, &scratch);
    let as_nobody = [AS_NOBODY, &[copy.as_str()]].concat();
    let assert_remedy = |command: &str, remedy: &str, other_remedy: &str| {
        let output = Peername::run_with_input(&host, &as_nobody, &words(command), "");
        assert_fails(&output, 1, &["CAP_NET_ADMIN", remedy]);
        assert!(!stderr_text(&output).contains(other_remedy));
        // To root, as in a container, "as root" would be no remedy.
        let output = Peername::run_with_input(&host, WITHOUT_CAPABILITIES, &words(command), "");
        assert_fails(
            &output,
            1,
            &[
                "CAP_NET_ADMIN",
                "; root lacks it here: ",
                "--cap-add NET_ADMIN",
            ],
        );
        assert!(!stderr_text(&output).contains("as root"));
    };
    let add = "run `peername routes add` with these options as root";
    assert_remedy("routes add", add, "--setup-routes");
    assert_eq!(run(&host, "routes show", 0), "");
    run(&host, "routes add", 0);
    for command in ["routes remove", "routes remove --all"] {
        let remedy = format!("; run `peername {command}` as root");
        assert_remedy(command, &remedy, "routes add");
    }
    // Without the capability, the tables of the packet filter can't be listed.
    let shown = run_as(&host, WITHOUT_CAPABILITIES, "routes show", 0);
    assert!(!shown.is_empty() && ADDED.starts_with(&shown), "{shown}");
    let output = Peername::run_with_input(&host, &as_nobody, &["routes", "show"], "");
    assert_contains(
        &stderr_text(&output),
        &["; run this as root to include them; "],
    );
}

#[test]
fn keeper_is_hidden_from_help() {
    let host = Host::new();
    assert!(!run(&host, "routes --help", 0).contains("keep"));
    run(&host, "routes keep", 2);
}
