//! go-mmproxy: its READMEs, its example unit, each of its flags.

use super::translated;

/// Old and native words, the latter without the options that each translation ends with.
pub(super) const TABLE: &[(&str, &str)] = &[
    (
        "",
        "proxy --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 --allowed-subnets ./path-prefixes.txt",
        "proxy --listen 0.0.0.0:25577 --target-v4 127.0.0.1:25578 --target-v6 [::1]:25578 \
         --trust @./path-prefixes.txt --source-policy allow-local --workers 1",
    ),
    // The example of a systemd unit.
    (
        "-4 127.0.0.1:1000 -6 [::1]:1000 -allowed-subnets /usr/share/net-prefixes.txt -l 0.0.0.0:1234",
        "proxy --listen 0.0.0.0:1234 --target-v4 127.0.0.1:1000 --target-v6 [::1]:1000 \
         --trust @/usr/share/net-prefixes.txt --source-policy allow-local --workers 1",
    ),
    (
        "-l=localhost:1 --4=db.example:2 -p=udp -close-after 90 -mark 0x7b -listeners=4",
        "proxy --listen localhost:1 --protocol udp --target-v4 db.example:2 --default-target [::1]:443 --trust any \
         --source-policy allow-local --mark 123 --close-after 90s --workers 4",
    ),
    (
        "-close-after 0 -mark 0",
        "proxy --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --mark 0 --close-after 1s --workers 1",
    ),
    (
        "-4 0.0.0.0:443 -6 [::]:443",
        "proxy --target-v4 127.0.0.1:443 --target-v6 [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    // The default target of one family is the address of the listener: that family gets no target.
    (
        "-l [::]:443 -4 127.0.0.1:80",
        "proxy --listen [::]:443 --target-v4 127.0.0.1:80 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:443 -6 [::1]:80",
        "proxy --listen 0.0.0.0:443 --target-v6 [::1]:80 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:443 -4 127.0.0.1:80",
        "proxy --listen 0.0.0.0:443 --target-v4 127.0.0.1:80 --default-target [::1]:443 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-p udp",
        "proxy --protocol udp --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any \
         --source-policy allow-local --close-after 60s --workers 1",
    ),
    (
        "-p udp -p tcp",
        "proxy --protocol tcp --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-listen-transparent=false -l 0.0.0.0:1 server -l 0.0.0.0:2",
        "proxy --listen 0.0.0.0:1 --default-target 127.0.0.1:443 --default-target [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -listen-transparent",
        "proxy --listen 0.0.0.0:25577 --target-v4 127.0.0.1:25578 --target-v6 [::1]:25578 \
         --trust any --source-policy allow-local --listen-transparent --workers 1",
    ),
    (
        "-dynamic-destination -4 10.0.0.1:80 -allow-destination 127.0.0.1:9000-9100",
        "proxy --target-v4 10.0.0.1:80 --default-target [::1]:443 --trust any --source-policy allow-local \
         --dynamic-destination --allow-destination 0.0.0.0/0 --allow-destination ::/0 \
         --allow-destination [::1]:443 --allow-destination 127.0.0.1:9000-9100 --workers 1",
    ),
    (
        "-dynamic-destination -4 localhost:9000 -6 [::]:80",
        "proxy --target-v4 localhost:9000 --target-v6 [::1]:80 --trust any --source-policy allow-local \
         --dynamic-destination --allow-destination 0.0.0.0/0 --allow-destination ::/0 \
         --allow-destination 127.0.0.1:9000 --allow-destination [::1]:80 --workers 1",
    ),
];

#[test]
fn verbosity_of_go_mmproxy_is_translated() {
    for (old, added) in [("-v 0", ""), ("-v 1", " -v"), ("-v=2", " -vv")] {
        let native = translated("/usr/bin/go-mmproxy", old).unwrap();
        assert!(
            native.ends_with(&format!("--log-format go-mmproxy{added}")),
            "{native}"
        );
    }
}

pub(super) const EARLY_EXITS: &[(&str, u8, &str)] = &[
    ("-h", 0, "Usage of go-mmproxy"),
    ("--help", 0, "Usage of go-mmproxy"),
    ("-v2", 2, "flag provided but not defined: -v2"),
    ("-x", 2, "flag provided but not defined: -x"),
    ("-l", 2, "flag needs an argument: -l"),
    (
        "-v abc",
        2,
        "invalid value \"abc\" for flag -v: parse error",
    ),
    ("-dynamic-destination=maybe", 2, "invalid boolean value"),
    ("-p TCP", 1, "--protocol has to be one of udp, tcp"),
    ("-p both", 1, "--protocol has to be one of udp, tcp"),
    ("-mark -1", 1, "--mark has to be >= 0"),
    ("-v -1", 1, "-v has to be"),
    ("-v 3", 1, "-v has to be"),
    ("-listeners 0", 1, "--listeners has to be >= 1"),
    ("-close-after -5", 1, "-close-after has to be >= 0"),
];
