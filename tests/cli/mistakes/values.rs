//! Values that are wrong, or in the wrong place: the answer tells what to write.

use crate::harness::lab::{Host, Scratch, assert_contains, stderr_text};
use crate::harness::peername::{AS_NOBODY, Peername, copy_executable, words};

#[test]
fn wrong_values_are_answered_with_what_to_write() {
    let host = Host::new();
    for (line, code, says) in [
        (
            "exec --connect --source=192.0.2.1 -- true",
            2,
            "the port is missing, as in 192.0.2.1:443\n",
        ),
        (
            "send --source=4711 127.0.0.1:80",
            2,
            "the address is missing, as in 127.0.0.1:4711\n",
        ),
        (
            "jail --allow a.test 443 -- true",
            2,
            "the port 443 follows a space: write it after the host and a colon, as in a.test:443\n",
        ),
        (
            "jail --allow=a.test 443 -- true",
            2,
            "the port 443 follows a space: write it after the host and a colon, as in a.test:443\n",
        ),
        (
            "jail --ask 443 -- true",
            2,
            "\"443\" is neither an option nor after `--`: repeat the option for it, or quote it with the word before it\n",
        ),
        (
            "top --admin=9100",
            2,
            "the address is missing, as in 127.0.0.1:9100\n",
        ),
        (
            "top --admin=192.0.2.1",
            2,
            "the port is missing, as in 192.0.2.1:9100\n",
        ),
        (
            "forward --listen=0.0.0.0:9000",
            2,
            "--to needs the address of the server, as in 192.0.2.20:443\n",
        ),
        (
            "ca init --days=0",
            2,
            "use a number of days from 1 to 3650\n",
        ),
        (
            "proxy --config=/etc",
            2,
            "/etc: not a regular file, but a directory\n",
        ),
        (
            "agent profile --check=nofile",
            1,
            "--check nofile: no such file; `peername agent profile --output FILE` writes one\n",
        ),
        (
            "agent profile --output=/nonexistent/profile.json",
            1,
            "--output: writing /nonexistent/profile.json: no such directory: /nonexistent\n",
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=10.0.0.0/33",
            2,
            "; the length after the slash is 32 at most\n",
        ),
        (
            "proxy --target=127.0.0.1:80 --trust=lb.example.com",
            2,
            "; names are not resolved here: ",
        ),
        (
            "exec --trust=any --ports=80-70 -- true",
            2,
            "the range is reversed: ",
        ),
        (
            "intercept --allow-destination=10.0.0.0/8:443-80",
            2,
            "the range of ports is reversed: ",
        ),
        (
            "intercept --contact=",
            2,
            "a value is required for '--contact <TEXT>' but none was supplied\n",
        ),
        (
            "intercept --allow a.test b.test",
            2,
            "tip: repeat the option: --allow b.test\n",
        ),
        (
            "intercept --allow a.test cat https://a.test",
            2,
            "tip: it runs no program; `peername jail ",
        ),
        (
            "proxy --trust 192.0.2.0/24 8443",
            2,
            "'8443' found\n\nUsage: ",
        ),
        (
            "forward 0.0.0.0:80 192.0.2.20:443",
            2,
            "tip: write --listen before ",
        ),
        (
            "decode --hex zz",
            2,
            "tip: it reads standard input: echo zz | peername decode --hex\n",
        ),
        (
            "routes del",
            2,
            "'del'\n\n  tip: the subcommands are show, add, remove\n",
        ),
        (
            "doctor 127.0.0.1:80",
            2,
            "tip: write --target 127.0.0.1:80\n",
        ),
        (
            "doctor --listen=127.0.0.1:80 --admin=127.0.0.1:9100",
            2,
            "tip: with --admin it only asks the running command ",
        ),
        (
            "agent --admin 127.0.0.1:9100 profile",
            2,
            "cannot be used with '--admin <ADDR|unix:PATH>'\n\nFor more information",
        ),
        (
            "top",
            2,
            "  --admin <ADDR|unix:PATH>\n\n  tip: for example `peername top --admin 127.0.0.1:9100`\n",
        ),
        (
            "config check",
            2,
            "tip: for example `peername config check /etc/peername/proxy.toml`\n",
        ),
        (
            "upgrade",
            2,
            "tip: for example `peername upgrade --pid 1234`\n",
        ),
        (
            "doctor proxy",
            2,
            "; without one it checks what `peername proxy` needs\n",
        ),
        (
            "routes add 127.0.0.1:8088",
            2,
            "tip: write --target 127.0.0.1:8088\n",
        ),
        (
            "proxy --listen=0.0.0.0:8443:8450",
            2,
            "a range of ports has a hyphen: 0.0.0.0:8443-8450\n",
        ),
        (
            "proxy --target=*:8088",
            2,
            "the address is missing, as in 127.0.0.1:8088\n",
        ),
        (
            "intercept --passthrough=https://a.test",
            2,
            "write the host alone, without scheme, port and path: ",
        ),
        (
            "intercept --auto-passthrough --allow=a.test",
            2,
            "; --passthrough HOST names such a host\n",
        ),
        (
            "jail --auto-passthrough --check-list=list -- true",
            2,
            "; --passthrough HOST names such a host\n",
        ),
        (
            "intercept --config=my.toml --allow=a.test",
            2,
            "write the option as a key in a table of the file",
        ),
        (
            "intercept --proxy-auth=nofile",
            2,
            "--proxy-auth nofile: no such file; `htpasswd -cB FILE USER` writes one\n",
        ),
        (
            "jail -q --log=/nonexistent/log -- true",
            2,
            "--log /nonexistent/log: no such directory: /nonexistent\n",
        ),
        (
            "agent profile --from=nofile",
            1,
            "peername: --from: nofile: no such file\n",
        ),
        (
            "jail --inject=a.test=Authorization:@token -- true",
            2,
            "write it without a colon or a space: ",
        ),
        (
            "intercept --log-format=go-mmproxy --allow=a.test",
            2,
            "invalid value 'go-mmproxy'",
        ),
    ] {
        assert_contains(&Peername::run_failing(&host, &words(line), code), &[says]);
    }
    let two_hosts = ["jail", "--allow", "a.test b.test", "--", "true"];
    let printed = Peername::run_failing(&host, &two_hosts, 2);
    assert_contains(&printed, &["a rule has one host"]);
    let scratch = Scratch::new();
    let text = "log-format = \"go-mmproxy\"\n[intercept]\nallow-client = \"private\"\n";
    let file = scratch.write("intercept.toml", text);
    let printed = Peername::run_failing(&host, &["intercept", "--config", &file], 2);
    assert_contains(&printed, &["no line for a request: use text or json"]);
    let file = scratch.write("rules.toml", "[intercept]\nrules = [\"a.test\"]\n");
    let printed = Peername::run_failing(&host, &["intercept", "--config", &file], 2);
    assert_contains(&printed, &["a rule begins with the word allow or deny, "]);
    let text = "[[listen]]\nlisten = [\"127.0.0.1:1\"]\ntarget = \"127.0.0.1:2\"\ntrust = true\n";
    let file = scratch.write("proxy.toml", text);
    let printed = Peername::run_failing(&host, &["proxy", "--config", &file], 2);
    assert_contains(&printed, &["line 4, trust: use a list of strings\n"]);
}

#[test]
fn upgrade_of_a_foreign_process_is_refused_with_the_reason() {
    let (host, scratch) = (Host::new(), Scratch::new());
    let copy = copy_executable(&host, &scratch);
    let program = [AS_NOBODY, &[copy.as_str()]].concat();
    let output = Peername::run_with_input(&host, &program, &["upgrade", "--pid=1"], "");
    assert_contains(
        &stderr_text(&output),
        &["process 1 belongs to another user, "],
    );
}
