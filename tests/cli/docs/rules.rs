//! docs/routes.md and docs/tproxy.md: the rules that they print are those that the program installs.

use super::follow::shell;
use crate::harness::lab::Host;
use crate::harness::page::Page;

const ROUTES: Page = Page::new(include_str!("../../../docs/routes.md"));
const TPROXY: Page = Page::new(include_str!("../../../docs/tproxy.md"));

#[test]
fn rules_for_a_backend_on_loopback_are_those_of_the_page() {
    let section = ROUTES.section("## A backend on loopback");
    let installed = host_after(&find_inline(section, "peername routes add"));
    assert_installed(&section.block("ip rule add"), &installed);
    let nat = ROUTES.section("## NAT rules of this host");
    assert_installed(&nat.block("table inet"), &installed);
    let probes = ROUTES
        .commands()
        .into_iter()
        .filter(|line| line.contains("route get"));
    for probe in probes {
        let route = shell(&installed, &probe);
        assert!(route.starts_with("local "), "{probe}: {route}");
    }
}

#[test]
fn rules_for_another_address_of_this_host_are_those_of_the_page() {
    let section = ROUTES.section("## A backend on another address of this host");
    let installed = Host::new();
    installed.ip("address add 10.0.0.5/24 dev lo");
    shell(&installed, &find_inline(section, "peername routes add"));
    assert_installed(&section.block("ip rule add"), &installed);
}

#[test]
fn rules_by_mark_are_those_of_the_page() {
    let section = ROUTES.section("## A backend on another host");
    let installed = host_after(&section.command("peername routes add"));
    assert_installed(&section.block("table inet peername_mark"), &installed);
}

#[test]
fn tproxy_rules_are_those_of_the_page() {
    let installed = host_after(&TPROXY.command("peername routes add"));
    assert_installed(&TPROXY.block("table inet peername_tproxy"), &installed);
}

fn find_inline(page: Page, start: &str) -> String {
    page.inline()
        .find(|code| code.starts_with(start))
        .unwrap_or_else(|| panic!("no code begins with {start}"))
}

/// A new host on which this command was run.
fn host_after(command: &str) -> Host {
    let host = Host::new();
    shell(&host, command);
    host
}

/// Asserts that every rule of a block of the page is installed on this host.
#[track_caller]
fn assert_installed(block: &str, installed: &Host) {
    let host = Host::new();
    // Addresses of the example belong to this host.
    host.ip("address add 10.0.0.5/24 dev lo");
    let (tables, commands): (Vec<_>, Vec<_>) =
        block.lines().partition(|line| !line.starts_with("ip "));
    host.nft(&tables.join("\n"));
    for command in commands {
        shell(&host, command);
    }
    let missing: Vec<_> = rules(&host)
        .into_iter()
        .filter(|rule| !rules(installed).contains(rule))
        .collect();
    assert!(
        missing.is_empty(),
        "{missing:#?} of {:#?}",
        rules(installed)
    );
    assert!(rules(&host).len() >= 2, "nothing was installed");
}

/// The routing rules and routes that peername made, and the packet filter.
fn rules(host: &Host) -> Vec<String> {
    let packet_filter = host.run("nft", &["list", "ruleset"]);
    host.routing_rules()
        .into_iter()
        // Their protocol is 211, and their tables are numbered from 21100 on.
        .filter(|rule| rule.contains("211"))
        .chain(packet_filter.lines().map(|line| line.trim().to_owned()))
        .collect()
}
