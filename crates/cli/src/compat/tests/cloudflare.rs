//! cloudflare/mmproxy: its README, each of its options.

use super::translated;

pub(super) const TABLE: &[(&str, &str)] = &[
    // The two examples of the README.
    (
        "-a /networks.txt -l 0.0.0.0:2222 -4 127.0.0.1:22 -6 [::1]:22",
        "proxy --listen 0.0.0.0:2222 --target-v4 127.0.0.1:22 --target-v6 [::1]:22 \
         --trust @/networks.txt --source-policy allow-local --source-port any --mark 123",
    ),
    (
        "--allowed-networks /networks.txt -l 0.0.0.0:2222 -4 127.0.0.1:22 -6 [::1]:22",
        "proxy --listen 0.0.0.0:2222 --target-v4 127.0.0.1:22 --target-v6 [::1]:22 \
         --trust @/networks.txt --source-policy allow-local --source-port any --mark 123",
    ),
    // All options, in several forms.
    (
        "--allowed-s=/n --list [::]:8080 --target-v4=127.0.0.1:80 --target-v6 [::1]:80 -m7 --tab=3 -PNq",
        "proxy --listen [::]:8080 --target-v4 127.0.0.1:80 --target-v6 [::1]:80 \
         --trust @/n --source-policy allow-local --mark 7 --no-sandbox",
    ),
    (
        "-a/n -l[::]:8080 -4[::ffff:127.0.0.1]:80 -6[::1]:80 --force",
        "proxy --listen [::]:8080 --target-v4 127.0.0.1:80 --target-v6 [::1]:80 \
         --trust @/n --source-policy allow-local --mark 123",
    ),
];

#[test]
fn verbosity_of_cloudflare_mmproxy_is_translated() {
    for (old, native) in TABLE {
        let verbose = translated("mmproxy", &format!("{old} -v"));
        let native = format!("{native} --workers 1 --log-format text -vv");
        assert_eq!(verbose, Ok(native), "{old}");
    }
}

pub(super) const EARLY_EXITS: &[(&str, u8, &str)] = &[
    ("-h", 255, "Usage:"),
    ("--he", 255, "Usage:"),
    ("--nothing", 255, "unrecognized option '--nothing'"),
    ("--target=1", 255, "option '--target' is ambiguous"),
    ("-x", 255, "invalid option -- 'x'"),
    ("-a", 255, "option requires an argument -- 'a'"),
    ("-q other", 1, "No extra parameters allowed."),
    ("", 1, "Please specify -l listen address."),
    (
        "-l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2",
        1,
        "Please specify --allowed-networks",
    ),
    ("-l 0.0.0.0:1 -a /n -6 [::1]:2", 1, "Please specify -4"),
    ("-l 0.0.0.0:1 -a /n -4 127.0.0.1:2", 1, "Please specify -6"),
    (
        "-l 0.0.0.0:1 -a /n -4 [::1]:2 -6 [::1]:2",
        1,
        "IPv4 clients can't connect",
    ),
    (
        "-l 0.0.0.0:1 -a /n -4 127.0.0.1:2 -6 127.0.0.1:2",
        1,
        "such as -6 [::1]:2",
    ),
    (
        "-l 0.0.0.0:1 -a /n -4 127.0.0.1:2 -6 [::1]:2 -m x",
        1,
        "x is not a valid --mark",
    ),
];
