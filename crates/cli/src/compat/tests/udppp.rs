//! udppp: its README, each of its options.

pub(super) const TABLE: &[(&str, &str)] = &[
    // The two examples of the README.
    (
        "-m 1 -b 0.0.0.0 -l 8000 -h 192.168.0.2 -r 8001 -p",
        "forward --listen 0.0.0.0:8000 --to 192.168.0.2:8001 --protocol udp --proxy-version 2 \
         --workers 2 --close-after 180s --log-format text -v",
    ),
    (
        "-m 2 -b 0.0.0.0 -l 8000 -h 127.0.0.1 -r 8001 -p",
        "proxy --listen 0.0.0.0:8000 --protocol udp --target-v4 127.0.0.1:8001 \
         --target-v6 [::1]:8001 --trust any --source-policy allow-local --source-port any \
         --close-after 180s --log-format text -v",
    ),
    (
        "-sm1 -l8000 --host=game.example --remote-port 8001",
        "forward --listen 127.0.0.1:8000 --to game.example:8001 --protocol udp \
         --proxy-version none --workers 2 --close-after 180s --log-format text --quiet",
    ),
    (
        "--mode=2 --local-port=8000 --remote-port=8001 --host=::1 --slient",
        "proxy --listen 0.0.0.0:8000 --protocol udp --target-v4 127.0.0.1:8001 \
         --target-v6 [::1]:8001 --trust any --source-policy allow-local --source-port any \
         --close-after 180s --log-format text --quiet",
    ),
    // No IPv4 target is given: IPv4 clients are refused.
    (
        "-m 2 -b :: -l 8000 -h fd00::5 -r 8000",
        "proxy --listen [::]:8000 --protocol udp \
         --target-v6 [fd00::5]:8000 --trust any --source-policy allow-local --source-port any \
         --close-after 180s --log-format text -v",
    ),
];

pub(super) const EARLY_EXITS: &[(&str, u8, &str)] = &[
    ("", 255, "Required option 'mode' missing"),
    ("", 255, "Usage: udppp"),
    ("-h", 255, "Argument to option 'h' missing"),
    ("--help", 255, "Unrecognized option: 'help'"),
    ("-m 3 -l 1 -r 2 -h 127.0.0.1", 255, "unknown mode 3"),
    ("-m 1 -l 70000 -r 2 -h 127.0.0.1", 255, "no port"),
    (
        "-m 2 -l 1 -r 2 -h localhost",
        255,
        "mode 2 needs an IP address",
    ),
    (
        "-m 1 -m 1 -l 1 -r 2 -h 127.0.0.1",
        255,
        "given more than once",
    ),
];
