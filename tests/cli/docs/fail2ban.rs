//! `docs/bans.md`: its jail on a stock Debian. `tests/proxy/fail2ban.rs` runs the action behind HAProxy.

use crate::harness::lab::{Host, Scratch, assert_contains};
use crate::harness::page::Page;

const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");

/// fail2ban reads the journal and bans by the action that the page copies.
#[test]
fn jail_of_the_page_is_valid() {
    let page = Page::new(include_str!("../../../docs/bans.md")).section("## fail2ban");
    let (host, scratch) = (Host::new(), Scratch::new());
    let config = scratch.path_text("fail2ban");
    host.run("cp", &["-r", "/etc/fail2ban", &config]);
    let copy = page.command("cp ");
    assert_contains(&copy, &["/usr/share/doc/peername/", "/etc/fail2ban/"]);
    let copy = copy
        .replace("/usr/share/doc/peername", PACKAGING)
        .replace("/etc/fail2ban", &config);
    host.run("sh", &["-ec", &copy]);
    scratch.write("fail2ban/jail.local", page.fenced("ini")[0]);
    let dump = host.run("fail2ban-client", &["-c", &config, "--dp"]);
    assert_contains(
        &dump,
        &[
            "['add', 'sshd', 'systemd']",
            "['set', 'sshd', 'addaction', 'peername']",
            "/etc/peername/denied",
        ],
    );
}
