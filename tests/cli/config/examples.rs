//! The examples of the pages and of the package are valid.

use super::{run, text};
use crate::harness::lab::Scratch;
use crate::harness::page::Page;

#[test]
fn documented_examples_are_valid() {
    let scratch = Scratch::new();
    let pages = [
        include_str!("../../../docs/config.md"),
        include_str!("../../../docs/bans.md"),
        include_str!("../../../docs/tutorial-inbound.md"),
        include_str!("../../../docs/intercept.md"),
    ];
    let examples = pages
        .into_iter()
        .flat_map(|page| Page::new(page).fenced("toml"));
    let policy = Page::new(include_str!("../../../docs/policy.md")).block("[intercept]");
    scratch.write("denied", "");
    scratch.write(
        "users",
        "ann:$2y$05$abcdefghijklmnopqrstuuXvGGwoUzp4Y0RJlbVbb4VRxSlWpQf5C\n",
    );
    scratch.write(
        "allowed-subnets.txt",
        include_str!("../../../packaging/examples/allowed-subnets.txt"),
    );
    let packaged = [
        include_str!("../../../packaging/examples/proxy.toml"),
        include_str!("../../../packaging/examples/forward.toml"),
        include_str!("../../../packaging/examples/intercept.toml"),
        &policy,
    ];
    let here = scratch.path_text("");
    for example in examples.chain(packaged) {
        let example = example
            .replace("/etc/peername/", &here)
            .replace("/var/log/peername-intercept/", &here);
        let path = scratch.write("proxy.toml", &example);
        let output = run(&["config", "check", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    }
}
