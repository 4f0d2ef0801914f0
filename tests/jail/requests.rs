//! Requests of a jailed program, and the names that they resolve.

use crate::harness::lab::{
    assert_contains, assert_count, assert_fails, stderr_text, stdout_text, wait_until,
};
use crate::harness::peername::{USERS, User, words};
use crate::harness::rig::jail::JailRig;

#[test]
fn curl_reaches_the_origin_as_root_and_as_ordinary_user() {
    let rig = JailRig::new();
    for user in USERS {
        let script = "curl -sS https://a.test/echo && curl -sS http://b.test/echo && curl -sS4 https://a.test/echo && \
             curl -sS6 https://a.test/echo";
        let printed = rig.succeeds(user, &[], script);
        let lines: Vec<_> = printed.lines().collect();
        let hosts = ["a.test", "b.test", "a.test", "a.test"];
        assert_eq!(lines.len(), hosts.len(), "{user:?}: {printed}");
        for (line, host) in lines.iter().zip(hosts) {
            assert!(
                line.starts_with(&format!("GET {host} ")),
                "{user:?}: {line}"
            );
        }
    }
}

#[test]
fn check_decides_by_name_and_a_denied_request_gets_the_page() {
    let rig = JailRig::new();
    let (check, option) = rig.start_check(&["a.test"]);
    let script =
        "curl -sS https://a.test/echo; curl -sSi https://b.test/echo; curl -sSi http://b.test/echo";
    let printed = rig.succeeds(User::Nobody, &[&option], script);
    assert!(printed.starts_with("GET a.test "), "{printed}");
    assert_count(&printed, "no such host for you", 2);
    assert_eq!(printed.matches(" 403").count(), 2, "{printed}");
    wait_until("the requests of the check", || {
        let log = check.log();
        let asked = ["a.test GET /echo", "b.test GET /echo"];
        asked.iter().all(|line| log.contains(line))
    });
}

/// A name has a synthetic address in the jail, whether it exists or not: the interceptor checks the name first, and resolves it
/// outside.
#[test]
fn names_have_synthetic_addresses_whether_they_exist_or_not() {
    let rig = JailRig::new();
    let script = "getent ahostsv4 a.test; getent ahostsv6 a.test; getent ahostsv4 nonexistent.test; \
        RES_OPTIONS=use-vc getent ahostsv4 tcp.test; \
        getent ahostsv4 localhost; curl -sS -o /dev/null -w '%{http_code} ' http://nonexistent.test/";
    let printed = rig.succeeds(User::Nobody, &[], script);
    let addresses: Vec<_> = printed.split_whitespace().collect();
    assert!(
        printed.matches("44.128.0.").count() >= 9 && printed.contains("3e70:6565:726e:616d::"),
        "{printed}"
    );
    assert!(
        addresses.contains(&"127.0.0.1") && addresses.contains(&"502"),
        "{printed}"
    );
}

/// Programs that guard against SSRF refuse private addresses. They accept the synthetic addresses of names in a jail.
#[test]
fn synthetic_addresses_pass_for_public_ones() {
    let rig = JailRig::new();
    // Prints whether each address is public, and whether it is in one of the ranges of the options below.
    let script = "import ipaddress, socket
ranges = [ipaddress.ip_network(text) for text in ('10.9.0.0/16', '2001:db8::/64')]
for found in socket.getaddrinfo('a.test', 443, type=socket.SOCK_STREAM):
    ip = ipaddress.ip_address(found[4][0])
    is_public = ip.is_global and not (ip.is_private or ip.is_reserved)
    print(is_public, any(ip in network for network in ranges))";
    let script = rig.scratch().write("guard.py", script);
    let script = format!("/usr/bin/python3 {script} && curl -sS -o /dev/null https://a.test/echo");
    let printed = rig.succeeds(User::Nobody, &["-q"], &script);
    assert_eq!(printed, "True False\nTrue False\n");
    let options = words("-q --name-range=10.9.0.0/16 --name-range=2001:db8::/64");
    let printed = rig.succeeds(User::Nobody, &options, &script);
    assert_eq!(printed, "False True\nFalse True\n");
    for wrong in ["--name-range=127.1.0.0/16", "--name-range=10.9.0.0/30"] {
        let refused = rig.run(User::Nobody, &[wrong], "true");
        assert_eq!(refused.status.code(), Some(2), "{wrong}: {refused:?}");
    }
}

/// A small range has addresses for few names. A further name fails to resolve, and standard error says why.
#[test]
fn name_without_an_address_is_reported() {
    let rig = JailRig::new();
    let script = "for n in $(seq 40); do getent ahosts n$n.test >/dev/null || echo $n; done";
    let output = rig.run(User::Nobody, &["--name-range=10.200.0.0/24"], script);
    let failed = stdout_text(&output);
    assert!(failed.starts_with("32\n33\n"), "{failed}");
    assert_contains(
        &stderr_text(&output),
        &["a name has no address: the table of 31 names is full"],
    );
}

#[test]
fn further_port_is_opened_on_request_only() {
    let rig = JailRig::new();
    let script = "curl -sS http://a.test:8081/echo";
    let refused = rig.run(User::Nobody, &[], script);
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    let printed = rig.succeeds(User::Nobody, &["--port=8081"], script);
    assert!(printed.starts_with("GET a.test:8081 "), "{printed}");
}

#[test]
fn private_destination_of_an_allowed_name_is_denied() {
    let rig = JailRig::new();
    let script = "curl -sS http://private.test/; curl -sS http://metadata.test/; curl -sS http://169.254.169.254/";
    let printed = rig.succeeds(User::Nobody, &[], script);
    assert_contains(
        &printed,
        &["destination_not_public", "destination_metadata"],
    );
}

/// The outer interceptor checks, by name, the connections of the inner one. The inner jail needs `--allow-mounts` of the outer
/// one.
#[test]
fn jail_in_a_jail_is_checked_by_both() {
    let rig = JailRig::new();
    let (check, option) = rig.start_check(&["a.test"]);
    let inner = format!(
        "{} jail --allow any -- sh -c 'curl -sS https://a.test/echo; curl -sS https://b.test/echo'",
        rig.scratch().path_text("peername")
    );
    for user in USERS {
        let refused = rig.run(user, &[&option], &inner);
        assert_fails(&refused, 125, &["runs in a jail of peername"]);
        let printed = rig.succeeds(user, &[&option, "--allow-mounts"], &inner);
        assert!(printed.starts_with("GET a.test "), "{user:?}: {printed}");
        assert_contains(&printed, &["no such host for you"]);
        // Only a mediator of connect(2) sees refused ports. An inner jail has none, because the outer jail's is there already.
        let inner = inner.replace("jail", "jail --fail-on-deny");
        let refused = rig.run(user, &[&option, "--allow-mounts"], &inner);
        assert_fails(&refused, 125, &["refused ports can't be seen"]);
    }
    assert!(check.log().contains("b.test GET /echo"));
}

/// A denial by the jail looks like one by the host, so a command of peername that fails adds that it runs in a jail.
#[test]
fn command_that_fails_in_a_jail_says_so_in_its_line() {
    let rig = JailRig::new();
    let peername = rig.scratch().path_text("peername");
    for command in [
        "ca export --ca /nonexistent",
        "exec --trust any --mode notify -- true",
        "routes add --target 127.0.0.1:1",
    ] {
        for user in USERS {
            let errors = stderr_text(&rig.run(user, &["-q"], &format!("{peername} {command}")));
            assert_contains(&errors, &["; this command runs in a jail of peername"]);
            assert_eq!(errors.lines().count(), 1, "{command}: {errors}");
        }
    }
    let outside = rig.run_outside(
        User::Root,
        &format!("{peername} ca export --ca /nonexistent"),
    );
    let errors = stderr_text(&outside);
    assert!(!errors.contains("jail"), "{errors}");
}

/// A connection to a host that the list lacks is a denial even if it ends before a request: because it has another protocol,
/// because the client does not trust the authority, or because nothing follows the handshake. Another protocol at a port of
/// HTTP is a denial also where the list has the host. A connection that sends nothing at all, here to `e.test`, is none.
#[test]
fn connections_without_a_request_are_denied_by_the_list() {
    let rig = JailRig::new();
    let script = rig.scratch().write("no_request.py", NO_REQUEST);
    let script = format!("/usr/bin/python3 {script}");
    let list = rig.scratch().write("list", "# none yet\n");
    let allowed = ["b", "c", "d", "e"].map(|name| format!("--allow={name}.test"));
    for user in USERS {
        let output = rig.run(user, &["--check-list", &list], &script);
        let errors = stderr_text(&output);
        let mut lines: Vec<_> = errors.lines().collect();
        lines.sort_unstable();
        let header = format!(
            "peername: --check-list {list}: what follows was denied, because the list does not have it"
        );
        let expected = [
            "+b.test # needs --allow-tcp b.test:443",
            "+c.test",
            "+d.test",
            &header,
        ];
        assert_eq!(lines, expected, "{user:?}");
        assert_eq!(output.status.code(), Some(122), "{user:?}");
        let allowed = allowed.each_ref().map(String::as_str);
        let options = [&["--fail-on-deny"][..], &allowed].concat();
        let output = rig.run(user, &options, &script);
        let expected = "peername: denied: b.test:443, once: --allow-tcp b.test:443 allows it\n";
        assert_eq!(stderr_text(&output), expected, "{user:?}");
        assert_eq!(output.status.code(), Some(122), "{user:?}");
        let options = [&options[..], &["--allow-tcp=b.test:443"]].concat();
        assert_eq!(rig.succeeds(user, &options, &script), "");
    }
}

const NO_REQUEST: &str = include_str!("requests/no_request.py");

/// Python prints the status line, and no more of an answer.
#[test]
fn status_line_of_a_denied_request_has_code_and_contact() {
    let rig = JailRig::new();
    let script = "/usr/bin/python3 -c 'import urllib.request
try: urllib.request.urlopen(\"https://b.test/\")
except Exception as error: print(error)'; curl -s --http2 -o /dev/null -w '%{http_version} %{http_code}\n' https://b.test/";
    let options = ["--allow=a.test", "--contact=Ask \u{e4} person"];
    let printed = stdout_text(&rig.run(User::Nobody, &options, script));
    let status_line = "HTTP Error 403: Forbidden (denied): Ask ? person";
    assert_eq!(printed, format!("{status_line}\n2 403\n"));
}
