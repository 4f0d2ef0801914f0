//! Typical mistakes on the command line: each is answered with its cause and what to write instead.

use crate::harness::lab::{Host, assert_contains};
use crate::harness::peername::{Peername, words};

#[test]
fn mistakes_are_answered_with_cause_and_fix() {
    let host = Host::new();
    let proxy = "proxy --listen=127.0.0.1:8443 --target=127.0.0.1:9000";
    for (line, code, says) in [
        (
            proxy,
            2,
            &["--trust: no network is listed", "such as 192.0.2.0/24"][..],
        ),
        (
            "proxy --listen=127.0.0.1:8443 --trust=any",
            2,
            &["--target is missing", "127.0.0.1:8080"],
        ),
        (
            "proxy --target=127.0.0.1 --trust=any",
            2,
            &["the port is missing, as in 127.0.0.1:443"],
        ),
        (
            "proxy --target-v6=::1 --trust=any",
            2,
            &["the port is missing, as in [::1]:443"],
        ),
        (
            "proxy --target=backend --trust=any",
            2,
            &["use 192.0.2.1:80, [2001:db8::1]:80 or host:80"],
        ),
        (
            "proxy --listen=443 --trust=any",
            2,
            &["the address is missing, as in 127.0.0.1:443, or 0.0.0.0:443 to listen on all"],
        ),
        (
            "exec --ports=80 -- true",
            2,
            &["--trust: no network is listed", "such as 192.0.2.0/24"],
        ),
        (
            "exec --trust=any redis-server --port 1",
            2,
            &["peername exec --trust=any -- redis-server --port 1"],
        ),
        ("jail curl", 2, &["peername jail -- curl"]),
        (
            "jail --allow=a.test:53/x -- true",
            2,
            &["a rule for port 53", "name server's"],
        ),
        (
            "jail --allow=b.test --deny=a.test:53/x -- true",
            2,
            &["a rule for port 53", "name server's"],
        ),
        (
            "jail --ca=/tmp -- true",
            2,
            &["--ca /tmp: the jail's own files are in /tmp"],
        ),
        (
            "exec --trust=192.0.2.* redis-server --port 1",
            2,
            &["\npeername exec '--trust=192.0.2.*' -- redis-server --port 1\n"],
        ),
        (
            "jail --allow a.test b.test -- curl",
            2,
            &[
                "\"b.test\" is neither an option nor behind `--`: repeat the option for it, or quote it",
            ],
        ),
        (
            "proxy --config=/nonexistent/proxy.toml",
            2,
            &["/nonexistent/proxy.toml: there is no such file; docs/config.md has examples"],
        ),
        (
            "upgrade --pid=peername",
            2,
            &["use the number of a process; `pgrep -a peername`"],
        ),
        (
            "upgrade --pid=4194304",
            1,
            &["process 4194304 does not run; `pgrep -a peername`"],
        ),
    ] {
        let said = Peername::run_failing(&host, &words(line), code);
        assert_contains(&said, says);
        let lines = said.lines().filter(|line| !line.is_empty()).count();
        assert!(lines <= 3, "{said}");
    }
}

#[test]
fn older_name_of_an_option_is_reported() {
    let host = Host::new();
    let usual = "proxy --target=127.0.0.1:9000 --trust=any";
    for (option, says) in [
        (
            "--address=127.0.0.1:8443",
            "--address is an older name of --listen",
        ),
        (
            "--listen=127.0.0.1:8443 --listeners 1",
            "--listeners is an older name of --workers",
        ),
    ] {
        let line = format!("{usual} {option}");
        let listens = [([127, 0, 0, 1], 8443).into()];
        Peername::start(&host, &words(&line), &listens).wait_logged(says);
    }
}
