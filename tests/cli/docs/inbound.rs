//! docs/tutorial-inbound.md, step by step, with HAProxy and the hosts of the page.

use super::follow::{Network, shell, start};
use crate::harness::addr::addr;
use crate::harness::lab::{Process, Scratch, wait_until};
use crate::harness::page::Page;

const PAGE: Page = Page::new(include_str!("../../../docs/tutorial-inbound.md"));

#[test]
fn tutorial_ends_with_a_banned_client() {
    let Network {
        client,
        balancer,
        host,
    } = Network::new();
    client.ip("route add 192.0.2.0/24 via 203.0.113.1");
    let scratch = Scratch::new();

    let server = PAGE
        .section("## 1. The server, and what it sees")
        .command("python3");
    let server = Process::start(
        &host,
        "env",
        &["PYTHONUNBUFFERED=1", "sh", "-ec", &format!("exec {server}")],
    )
    .wait_listening(&[addr("127.0.0.1:8443")]);

    let sections = PAGE
        .section("## 2. The balancer names the client")
        .fenced("haproxy")[0];
    let timeouts =
        "defaults\n    timeout connect 5s\n    timeout client 9s\n    timeout server 9s\n";
    let config = scratch.write("haproxy.cfg", &format!("{timeouts}{sections}"));
    let _haproxy = Process::start(&balancer, "haproxy", &["-db", "-f", &config])
        .wait_listening(&[addr("192.0.2.10:80")]);

    let section = PAGE.section("## 3. peername takes the header");
    let request = section.command("curl");
    let proxy = start(&host, &[], &section.command("peername proxy"));
    shell(&client, &request);
    server.wait_logged("203.0.113.7 - - ");
    drop(proxy);

    let section = PAGE.section("## 4. As a service");
    let here =
        |text: &str| text.replace("/etc/peername", scratch.path_text("").trim_end_matches('/'));
    scratch.write("proxy.toml", &here(section.fenced("toml")[0]));
    shell(&host, &here(&section.command("touch")));
    let checked = shell(&host, &here(&section.command("peername config check")));
    assert!(checked.contains("ok"), "{checked}");
    shell(&host, "peername routes add");
    let _proxy = start(
        &host,
        &[],
        &here("peername proxy --config /etc/peername/proxy.toml"),
    );
    shell(&client, &request);

    let ready = PAGE.section("## 5. Is it well?").command("curl");
    assert_eq!(shell(&host, &ready), "ready\n");

    shell(
        &host,
        &here(&PAGE.section("## 6. Ban a client").command("echo")),
    );
    let request = format!("! {request}");
    wait_until("the ban", || {
        let mut command = std::process::Command::new("bash");
        let output = client.output(command.args(["-ec", &request]), "");
        output.status.success()
    });
}
