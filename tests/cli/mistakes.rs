//! Typical mistakes on the command line: each is answered with its cause and what to write instead.

mod secrets;
mod values;

use crate::harness::lab::{Host, assert_contains, assert_fails, stderr_text};
use crate::harness::peername::{Peername, User, words};
use crate::harness::rig::jail::JailRig;

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
            "proxy --target=127.0.0.1:8443 --trust=192.0.2.10",
            2,
            &[
                "the proxy would connect to itself, because it listens on 0.0.0.0:8443; choose another port by --listen",
            ],
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
            "proxy --target=8443 --trust=any",
            2,
            &["the address is missing, as in 127.0.0.1:8443\n"],
        ),
        (
            "proxy --listen=443 --trust=any",
            2,
            &["the address is missing, as in 127.0.0.1:443, or 0.0.0.0:443 to listen on all"],
        ),
        (
            "forward --to=127.0.0.1:0",
            2,
            &["name the server's address and port"],
        ),
        (
            "exec --ports=80 -- true",
            2,
            &["--trust: no network is listed", "such as 192.0.2.0/24"],
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=@/none",
            2,
            &["; write the networks to it, one a line"],
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=/etc/hosts",
            2,
            &["for the networks in this file write @/etc/hosts"],
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=192.0.2.1,192.0.2.2",
            2,
            &["; several are values of their own: one for each option"],
        ),
        (
            "exec --trust=any",
            2,
            &["\npeername exec --trust=any -- CMD\n"],
        ),
        (
            "jail --allow=/etc/hosts -- true",
            2,
            &["write --allow @/etc/hosts"],
        ),
        (
            "exec --unit=nginx --trust=any --check",
            3,
            &["the same command without --check writes it"],
        ),
        (
            "exec --mode=netns --trust=any --ports=80 --max-connections=9 -- true",
            2,
            &["--max-connections is not for --mode netns"],
        ),
        (
            "exec --check",
            2,
            &["peername: --check is for --unit: peername exec --unit NAME --check\n"],
        ),
        (
            "exec --trust=any --print",
            2,
            &["peername: --print is for --unit: peername exec --unit NAME --print\n"],
        ),
        (
            "exec --remove true",
            2,
            &["peername: --remove is for --unit: peername exec --unit NAME --remove\n"],
        ),
        (
            "exec --unit=nosuchunit --remove",
            1,
            &["nosuchunit.service: no such unit; `systemctl list-unit-files '*.service'`"],
        ),
        (
            "exec --trust=any redis-server --port 1",
            2,
            &["peername exec --trust=any -- redis-server --port 1"],
        ),
        (
            "exec --trust=any server --check",
            2,
            &["peername exec --trust=any -- server --check"],
        ),
        (
            "exec --trust=any --print -- true",
            2,
            &["'--print' cannot be used with '[CMD]...'\n\n  tip: write --unit "],
        ),
        (
            "exec --trust=any --check -- true",
            2,
            &["'--check' cannot be used with '[CMD]...'"],
        ),
        (
            "exec --trust=any --remove -- true",
            2,
            &["'--remove' cannot be used with '[CMD]...'"],
        ),
        ("jail curl", 2, &["peername jail -- curl"]),
        (
            "jail --allow=a.test:53/x -- true",
            2,
            &["a rule for port 53", "the jail's name server"],
        ),
        (
            "jail --allow=b.test --deny=a.test:53/x -- true",
            2,
            &["a rule for port 53", "the jail's name server"],
        ),
        (
            "jail --hide=/tmp -- true",
            2,
            &["--hide /tmp: the jail's own files are in /tmp"],
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
                "\"b.test\" is neither an option nor after `--`: repeat the option for it, or quote it",
            ],
        ),
        (
            "jail --check-list nolist.txt -- true",
            2,
            &[
                "--check-list nolist.txt: no such file in /",
                "; make it: peername jail --learn nolist.txt -- CMD",
            ],
        ),
        (
            "jail --check-list=@list.txt -- true",
            2,
            &["write list.txt alone, without @"],
        ),
        (
            "jail --learn=one --learn=two -- true",
            2,
            &["'--learn <FILE>' cannot be used multiple times"],
        ),
        (
            "jail --allow=redis://cache.corp -- true",
            2,
            &["write --allow cache.corp:6379"],
        ),
        (
            "proxy --target=http://127.0.0.1:80 --trust=any",
            2,
            &[
                "a URL is not taken here: use 192.0.2.1:80, [2001:db8::1]:80 or host:80, without http://",
            ],
        ),
        (
            "proxy --config=/etc/hosts",
            2,
            &[
                "/etc/hosts, line 1: not TOML: ",
                "; docs/config.md has examples",
            ],
        ),
        (
            "intercept --allow=@nolist.txt",
            2,
            &[
                "--allow @nolist.txt: no such file in /",
                "; make it: peername jail --learn nolist.txt",
            ],
        ),
        (
            "jail -q -- nosuchprog",
            127,
            &["peername: nosuchprog: no such program in PATH"],
        ),
        (
            "jail -q -- /etc/passwd",
            126,
            &["/etc/passwd: not an executable file: chmod +x '/etc/passwd'"],
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
            "agent --trust=any --listen=/etc/hosts",
            1,
            &[
                "--listen /etc/hosts: there is another file, not a socket; remove it or use another path",
            ],
        ),
        (
            "agent hold --holder=/etc/hosts",
            1,
            &["--holder /etc/hosts: there is another file, not a socket"],
        ),
        (
            &format!("agent --trust=any --listen=/{}", "a".repeat(99)),
            2,
            &["use a path of at most 99 bytes"],
        ),
        (
            "agent --trust=any --runtime-uid=nobody",
            2,
            &["use a number: id -u nobody"],
        ),
        (
            "ca show --ca=/etc/hosts",
            1,
            &["--ca /etc/hosts: a file, not a directory"],
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=@/bin/true",
            2,
            &["--trust @/bin/true: line 1: not UTF-8; save the file as UTF-8"],
        ),
        (
            "proxy --listen=127.0.0.1:70000 --target=127.0.0.1:80 --trust=any",
            2,
            &["a port is a number from 1 to 65535\n"],
        ),
        (
            "proxy --target=nosuch.invalid:80 --trust=any",
            1,
            &[
                "peername: --target nosuch.invalid:80: ",
                "; `getent hosts nosuch.invalid` looks it up, too\n",
            ],
        ),
        (
            "send 127.0.0.1:8443",
            1,
            &[
                "127.0.0.1:8443: connect(2): ",
                "; does it listen there (`ss -ltn`)?",
            ],
        ),
        (
            "send --protocol=udp 127.0.0.1:8443",
            1,
            &[
                "127.0.0.1:8443: recv(2): ",
                "; does it listen there (`ss -lun`)?",
            ],
        ),
        (
            "agent profile --from=/etc/hosts",
            1,
            &["/etc/hosts: no seccomp profile: not JSON: "],
        ),
        (
            "jail --check-take=x-user --check=grpc://127.0.0.1:9191 -- true",
            2,
            &["--check-take: headers to take from the answer are for forwardAuth"],
        ),
        ("man /etc/hosts", 1, &["/etc/hosts: a file, not a folder"]),
        (
            "upgrade --pid=4194304",
            1,
            &["process 4194304 does not run; `pgrep -a peername`"],
        ),
    ] {
        let printed = Peername::run_failing(&host, &words(line), code);
        assert_contains(&printed, says);
        let lines = printed.lines().filter(|line| !line.is_empty()).count();
        assert!(lines <= 3, "{printed}");
        // clap's usage would repeat what the error has just refused.
        assert!(
            !printed.contains("cannot be used") || !printed.contains("Usage"),
            "{printed}"
        );
    }
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let host = Host::new();
    for (line, says) in [
        ("routes list", "the subcommands are show, add, remove\n"),
        ("prxy", "exists: 'proxy'\n\nFor more"),
        (
            "routes remove --target=127.0.0.1:80",
            "tip: it is an option of `peername routes add`, `peername proxy`, `peername doctor`\n",
        ),
        ("jail --listen=127.0.0.1:1 -- true", "Usage: peername jail "),
        (
            "exec --target=127.0.0.1:80 -- nginx",
            "tip: it is an option of `peername proxy`, `peername doctor`\n",
        ),
        (
            "forward --target=127.0.0.1:80",
            "tip: `peername forward` has --to\n\nFor more",
        ),
        (
            "proxy --to=127.0.0.1:80",
            "tip: `peername proxy` has --target\n",
        ),
        ("proxy --backend=a", "tip: `peername proxy` has --target\n"),
        (
            "exec --trust=any --port=80 -- true",
            "tip: `peername exec` has --ports\n",
        ),
        (
            "jail --allow-host=a -- true",
            "tip: `peername jail` has --allow\n",
        ),
        (
            "jail --trust=any -- true",
            "tip: it is an option of `peername proxy`, ",
        ),
        ("help nosuch", "the subcommands are proxy, exec, agent, "),
        (
            "decode header.bin",
            "tip: it reads standard input: < header.bin\n",
        ),
        ("proxy my.toml", "tip: write --config my.toml\n"),
        ("upgrade 1234", "tip: write --pid 1234\n"),
        ("ca init ./ca", "tip: write --ca ./ca\n"),
        ("-v", "tip: -V prints the version\n"),
        ("jail --alow a.test -- true", "'--allow'\n\nFor more"),
        ("proxy --trsut any", "'--trust'"),
    ] {
        let printed = Peername::run_failing(&host, &words(line), 2);
        assert_contains(&printed, &[says]);
        // Neither clap's tip to pass an unknown option on as a value, nor the hidden subcommand `routes keep`.
        assert!(!printed.contains("as a value"), "{printed}");
        assert!(!printed.contains("keep"), "{printed}");
    }
}

#[test]
fn mistakes_of_an_ordinary_user_are_answered_with_what_it_may_do() {
    let rig = JailRig::new();
    let peername = rig.scratch().path_text("peername");
    let agent = "/run/peername-agent-of-a-test/agent.sock";
    for (command, code, says) in [
        (
            format!("{peername} agent --trust any --listen unix:{agent}"),
            1,
            "; run as root, or --listen in a folder of yours",
        ),
        (
            format!("{peername} proxy --target 127.0.0.1:80 --trust @/etc/shadow"),
            2,
            "--trust @/etc/shadow: Permission denied (os error 13) for the user with id ",
        ),
        (
            format!("{peername} exec --trust @/etc/shadow -- true"),
            2,
            "; `namei -l /etc/shadow` shows who may",
        ),
        (
            format!("env --unset=HOME {peername} ca init"),
            2,
            "give --ca DIR",
        ),
        (
            format!("env TMPDIR=/nonexistent {peername} jail --allow any -- true"),
            125,
            "creating a directory in /nonexistent: ",
        ),
        (
            format!("env HOME=/root {peername} intercept --allow any"),
            1,
            "run as its owner, or give another --ca DIR",
        ),
    ] {
        let output = rig.run_outside(User::Nobody, &command);
        assert_fails(&output, code, &[says]);
        let printed = stderr_text(&output);
        assert!(printed.matches("(os error").count() <= 1, "{printed}");
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
