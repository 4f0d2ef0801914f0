//! mmproxy-rs: its README, each of its options.

use super::Environment;
use crate::compat::mmproxy_rs::translate;

pub(super) const TABLE: &[(&str, &str)] = &[
    (
        "",
        "proxy --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    // The README's example.
    (
        "-l 192.0.2.1:8080 -4 127.0.0.1:8081 -p udp",
        "proxy --listen 192.0.2.1:8080 --protocol udp --target-v4 127.0.0.1:8081 --default-target [::1]:443 --trust any \
         --source-policy allow-local --close-after 60s --workers 1",
    ),
    (
        "--listen-addr 0.0.0.0:1 --ipv4 127.0.0.1:2 --ipv6 [::1]:2 --allowed-subnets /list \
         --close-after 5 --listeners 3 --protocol UDP --mark 7",
        "proxy --listen 0.0.0.0:1 --protocol udp --target-v4 127.0.0.1:2 --target-v6 [::1]:2 \
         --trust @/list --source-policy allow-local --mark 7 --close-after 5s --workers 3",
    ),
    (
        "-l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -c 5 -p TCP -m 7",
        "proxy --listen 0.0.0.0:1 --protocol tcp --target-v4 127.0.0.1:2 --target-v6 [::1]:2 \
         --trust any --source-policy allow-local --mark 7 --close-after 5s --workers 1",
    ),
    (
        "-mark 7 --listeners=2",
        "proxy --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --mark 7 --workers 2",
    ),
    (
        "-l -p udp",
        "proxy --protocol udp --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any \
         --source-policy allow-local --close-after 60s --workers 1",
    ),
];

#[test]
fn mmproxy_rs_takes_its_verbosity_from_rust_log() {
    let table = [
        ("off", "--quiet"),
        ("error", "--quiet"),
        ("info", "-v"),
        ("mmproxy=debug", "-v"),
        ("warn,mmproxy=trace", "-vv"),
        ("", "-v"),
    ];
    for (rust_log, option) in table {
        let environment = Environment {
            rust_log: Some(rust_log),
            cores: 1,
        };
        let words = translate(&[], environment).unwrap().words;
        assert_eq!(words.last().unwrap(), option, "{rust_log}");
    }
}

pub(super) const EARLY_EXITS: &[(&str, u8, &str)] = &[
    ("-h", 1, "Usage: mmproxy"),
    ("--help", 1, "Usage: mmproxy"),
    ("-x", 1, "unsupported switch: -x"),
    ("positional", 1, "unsupported argument: positional"),
    ("-4", 1, "missing its value"),
    ("-p sctp", 1, "invalid protocol value: sctp"),
    ("-m 0x7b", 1, "invalid number"),
    ("-c -1", 1, "invalid number"),
];
