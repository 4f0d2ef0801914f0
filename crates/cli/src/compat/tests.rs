//! Golden tests: an old command line on the left, the native one on the right.

use clap::Parser;

use super::*;
use crate::Args;

/// Old and native words; `TRUST_ANY` stands for what is always there without a list.
const GO: &[(&str, &str)] = &[
    (
        "",
        "proxy --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 --allowed-subnets ./path-prefixes.txt",
        "proxy --listen 0.0.0.0:25577 --target-v4 127.0.0.1:25578 --target-v6 [::1]:25578 \
         --trust @./path-prefixes.txt --source-policy allow-local --workers 1",
    ),
    // The example unit.
    (
        "-4 127.0.0.1:1000 -6 [::1]:1000 -allowed-subnets /usr/share/net-prefixes.txt -l 0.0.0.0:1234",
        "proxy --listen 0.0.0.0:1234 --target-v4 127.0.0.1:1000 --target-v6 [::1]:1000 \
         --trust @/usr/share/net-prefixes.txt --source-policy allow-local --workers 1",
    ),
    (
        "-l=localhost:1 --4=db.example:2 -p=udp -close-after 90 -mark 0x7b -listeners=4",
        "proxy --listen localhost:1 --protocol udp --target-v4 db.example:2 --trust any \
         --source-policy allow-local --mark 123 --close-after 90s --workers 4",
    ),
    (
        "-close-after 0 -mark 0",
        "proxy --trust any --source-policy allow-local --mark 0 --close-after 1s --workers 1",
    ),
    (
        "-4 0.0.0.0:443 -6 [::]:443",
        "proxy --target-v4 127.0.0.1:443 --target-v6 [::1]:443 --trust any --source-policy allow-local --workers 1",
    ),
    // Its own defaults are where it listens: the family without a target goes nowhere.
    (
        "-l [::]:443 -4 127.0.0.1:80",
        "proxy --listen [::]:443 --target-v4 127.0.0.1:80 --target-v6 [::1]:1 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:443 -6 [::1]:80",
        "proxy --listen 0.0.0.0:443 --target-v4 127.0.0.1:1 --target-v6 [::1]:80 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:443 -4 127.0.0.1:80",
        "proxy --listen 0.0.0.0:443 --target-v4 127.0.0.1:80 --trust any \
         --source-policy allow-local --workers 1",
    ),
    (
        "-p udp -p tcp",
        "proxy --protocol tcp --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-listen-transparent=false -l 0.0.0.0:1 server -l 0.0.0.0:2",
        "proxy --listen 0.0.0.0:1 --trust any --source-policy allow-local --workers 1",
    ),
    (
        "-l 0.0.0.0:25577 -4 127.0.0.1:25578 -6 [::1]:25578 -listen-transparent",
        "proxy --listen 0.0.0.0:25577 --target-v4 127.0.0.1:25578 --target-v6 [::1]:25578 \
         --trust any --source-policy allow-local --listen-transparent --workers 1",
    ),
    (
        "-dynamic-destination -4 10.0.0.1:80 -allow-destination 127.0.0.1:9000-9100",
        "proxy --target-v4 10.0.0.1:80 --trust any --source-policy allow-local \
         --dynamic-destination --allow-destination 0.0.0.0/0 --allow-destination ::/0 \
         --allow-destination [::1]:443 --allow-destination 127.0.0.1:9000-9100 --workers 1",
    ),
];

#[test]
fn go_mmproxy() {
    for (old, native) in GO {
        let native = format!("{native} --log-format go-mmproxy");
        assert_eq!(translated("go-mmproxy", old), Ok(native), "{old}");
    }
    for (old, added) in [
        ("-v 0", ""),
        ("-v 1", " -v"),
        ("-v=2", " -vv"),
        ("-v 3", " -vv"),
    ] {
        let native = translated("/usr/bin/go-mmproxy", old).unwrap();
        assert!(
            native.ends_with(&format!("--log-format go-mmproxy{added}")),
            "{native}"
        );
    }
}

#[test]
fn go_mmproxy_stops() {
    let table = [
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
        ("-listeners 0", 1, "--listeners has to be >= 1"),
        ("-close-after -5", 1, "-close-after has to be >= 0"),
    ];
    stops("go-mmproxy", &table);
}

const RS: &[(&str, &str)] = &[
    (
        "",
        "proxy --trust any --source-policy allow-local --workers 1",
    ),
    // The README's example.
    (
        "-l 192.0.2.1:8080 -4 127.0.0.1:8081 -p udp",
        "proxy --listen 192.0.2.1:8080 --protocol udp --target-v4 127.0.0.1:8081 --trust any \
         --source-policy allow-local --workers 1",
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
        "proxy --trust any --source-policy allow-local --mark 7 --workers 2",
    ),
    (
        "-l -p udp",
        "proxy --protocol udp --trust any --source-policy allow-local --workers 1",
    ),
];

#[test]
fn mmproxy_rs() {
    for (old, native) in RS {
        let native = format!("{native} --log-format text -v");
        assert_eq!(translated("mmproxy", old), Ok(native.clone()), "{old}");
        assert_eq!(translated("mmproxy-rs", old), Ok(native), "{old}");
    }
}

#[test]
fn mmproxy_rs_logs_by_the_environment() {
    let table = [
        ("off", "--quiet"),
        ("error", "--quiet"),
        ("info", "-v"),
        ("mmproxy=debug", "-v"),
        ("warn,mmproxy=trace", "-vv"),
        ("", "-v"),
    ];
    for (rust_log, option) in table {
        let world = World {
            rust_log: Some(rust_log),
            cores: 1,
        };
        let words = mmproxy_rs::translate(&[], world).unwrap().words;
        assert_eq!(words.last().unwrap(), option, "{rust_log}");
    }
}

#[test]
fn mmproxy_rs_stops() {
    let table = [
        ("-h", 1, "Usage: mmproxy"),
        ("--help", 1, "Usage: mmproxy"),
        ("-x", 1, "unsupported switch: -x"),
        ("positional", 1, "unsupported argument: positional"),
        ("-4", 1, "missing its value"),
        ("-p sctp", 1, "invalid protocol value: sctp"),
        ("-m 0x7b", 1, "invalid number"),
        ("-c -1", 1, "invalid number"),
    ];
    stops("mmproxy-rs", &table);
}

const CLOUDFLARE: &[(&str, &str)] = &[
    // The README's two.
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
    // All of them, in several forms.
    (
        "--allowed-s=/n --list [::]:8080 --target-v4=127.0.0.1:80 --target-v6 [::1]:80 -m7 --tab=3 -PNq",
        "proxy --listen [::]:8080 --target-v4 127.0.0.1:80 --target-v6 [::1]:80 \
         --trust @/n --source-policy allow-local --mark 7",
    ),
    (
        "-a/n -l[::]:8080 -4[::ffff:127.0.0.1]:80 -6[::1]:80 --force",
        "proxy --listen [::]:8080 --target-v4 127.0.0.1:80 --target-v6 [::1]:80 \
         --trust @/n --source-policy allow-local --mark 123",
    ),
];

#[test]
fn cloudflare_mmproxy() {
    for (old, native) in CLOUDFLARE {
        let native = format!("{native} --workers 1 --log-format text -v");
        assert_eq!(translated("mmproxy", old), Ok(native.clone()), "{old}");
        assert_eq!(
            translated("cloudflare-mmproxy", old),
            Ok(native.clone()),
            "{old}"
        );
        let verbose = translated("mmproxy", &format!("{old} -v"));
        assert_eq!(verbose, Ok(format!("{native}v")), "{old}");
    }
}

#[test]
fn cloudflare_mmproxy_suggests() {
    let suggestions = |old: &str| {
        let old = format!("{old} -a /n -l 0.0.0.0:1 -4 127.0.0.1:22 -6 [::1]:22");
        as_program("mmproxy", &old).unwrap().suggestions.unwrap()
    };
    let usual = Suggestions {
        mark: 123,
        table: 100,
        targets: [
            Some("127.0.0.1:22".parse().unwrap()),
            Some("[::1]:22".parse().unwrap()),
        ],
        quiet: false,
    };
    assert_eq!(suggestions("--verbose"), usual);
    let other = Suggestions {
        mark: 5,
        table: 6,
        quiet: true,
        ..usual
    };
    assert_eq!(suggestions("-qm5 -t 6"), other);
}

#[test]
fn cloudflare_mmproxy_stops() {
    let table = [
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
    stops("cloudflare-mmproxy", &table);
}

#[test]
fn which_mmproxy_it_is() {
    let table = [
        ("", Program::MmproxyRs),
        ("-h", Program::MmproxyRs),
        ("-l 0.0.0.0:1 -4 127.0.0.1:2", Program::MmproxyRs),
        ("-l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2", Program::MmproxyRs),
        (
            "-a /n -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2 -p tcp",
            Program::MmproxyRs,
        ),
        ("--listen-addr 0.0.0.0:1", Program::MmproxyRs),
        ("-nonsense", Program::MmproxyRs),
        (
            "-a /n -l 0.0.0.0:1 -4 127.0.0.1:2 -6 [::1]:2",
            Program::Cloudflare,
        ),
        ("--listen 0.0.0.0:1", Program::Cloudflare),
        ("-qP", Program::Cloudflare),
        ("-v", Program::Cloudflare),
    ];
    for (old, program) in table {
        let called = Program::called(OsStr::new("/usr/local/bin/mmproxy"), &words(old));
        assert_eq!(called, Some(program), "{old}");
    }
}

const UDPPP: &[(&str, &str)] = &[
    // The README's two.
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
];

#[test]
fn udppp() {
    for (old, native) in UDPPP {
        assert_eq!(translated("udppp", old), Ok((*native).to_owned()), "{old}");
    }
}

#[test]
fn udppp_stops() {
    let table = [
        ("", 255, "Required option 'mode' missing"),
        ("-h", 255, "Argument to option 'host' missing"),
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
    stops("udppp", &table);
}

#[test]
fn by_name_and_by_option() {
    let native = translated("go-mmproxy", "-v 1");
    for argv in [
        ["peername", "--compat", "go-mmproxy", "-v", "1"].as_slice(),
        &["peername", "--compat=go-mmproxy", "-v", "1"],
        &["mmproxy", "--compat=go-mmproxy", "-v", "1"],
        &["/opt/go-mmproxy", "-v", "1"],
    ] {
        let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
        let words = super::translate(&argv)
            .unwrap()
            .map(|translation| spoken(&translation));
        assert_eq!(words, native, "{argv:?}");
    }
    for argv in [
        "peername proxy",
        "peername proxy --compat=udppp",
        "peername",
    ] {
        assert!(super::translate(&words(argv)).is_none(), "{argv}");
    }
    for argv in ["peername --compat", "peername --compat squid -h"] {
        let stop = super::translate(&words(argv)).unwrap().unwrap_err();
        assert!(stop.code == 2 && stop.text.contains("udppp"), "{stop:?}");
    }
}

/// Everything that comes out of the tables is understood natively.
#[test]
fn what_is_run_is_a_command_line_of_ours() {
    let tables = [
        ("go-mmproxy", GO),
        ("mmproxy-rs", RS),
        ("cloudflare-mmproxy", CLOUDFLARE),
        ("udppp", UDPPP),
    ];
    for (program, (old, _)) in tables
        .iter()
        .flat_map(|(p, table)| table.iter().map(move |row| (p, row)))
    {
        // Names need a resolver.
        let old = old.replace("db.example", "127.0.0.1");
        let old = old.replace("game.example", "127.0.0.1");
        let translation = as_program(program, &old).unwrap();
        let line = [vec!["peername".into()], translation.words].concat();
        let parsed = Args::try_parse_from(&line);
        assert!(parsed.is_ok(), "{line:?}: {parsed:?}");
    }
}

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

fn as_program(name: &str, old: &str) -> Result<Translation, Stop> {
    let args = words(old);
    let world = World {
        rust_log: None,
        cores: 2,
    };
    let program = Program::called(OsStr::new(name), &args).unwrap();
    program.translate(&args, world)
}

fn spoken(translation: &Translation) -> String {
    let words: Vec<_> = translation
        .words
        .iter()
        .map(|word| word.to_str().unwrap())
        .collect();
    words.join(" ")
}

fn translated(name: &str, old: &str) -> Result<String, Stop> {
    as_program(name, old).map(|translation| spoken(&translation))
}

#[track_caller]
fn stops(name: &str, table: &[(&str, u8, &str)]) {
    for (old, code, text) in table {
        let stop = as_program(name, old).unwrap_err();
        assert_eq!(stop.code, *code, "{old}: {stop:?}");
        assert!(stop.text.contains(text), "{old}: {stop:?}");
    }
}
