mod missing_rule;

use super::*;
use crate::host::ParseHostError;

fn rules(texts: &[&str]) -> AccessRules {
    let rules = texts.iter().map(|text| text.parse().unwrap()).collect();
    AccessRules::new(rules).unwrap().unwrap()
}

fn to(text: &str) -> HostPort {
    HostPort::parse(text).unwrap()
}

fn allows(rules: &AccessRules, host: &str, subject: Subject<'_>) -> bool {
    rules.decide(&to(host), subject).is_ok()
}

fn allows_request(rules: &AccessRules, host: &str, path: &str) -> bool {
    allows_method(rules, host, "GET", path)
}

fn allows_method(rules: &AccessRules, host: &str, method: &str, path: &str) -> bool {
    allows(rules, host, Subject::Request { method, path })
}

#[test]
fn the_first_match_decides_and_the_default_denies() {
    let rules = rules(&[
        "deny a.test/private",
        "allow a.test",
        "deny *.b.test:8443",
        "allow *.b.test/public",
        "allow 192.0.2.0/24:80",
    ]);
    for (host, path, allowed) in [
        ("a.test:443", "/", true),
        ("A.TEST.:80", "/x", true),
        ("a.test:443", "/private", false),
        ("a.test:443", "/private/x", false),
        ("a.test:443", "/Private/x", false),
        ("a.test:443", "/x/../private", false),
        ("a.test:443", "/x//y", false),
        ("a.test:443", "/privateer", true),
        ("x.a.test:443", "/", false),
        ("b.test:443", "/public", false),
        ("x.b.test:443", "/public/1", true),
        ("x.b.test:443", "/public/../1", false),
        ("x.b.test:443", "/", false),
        ("x.b.test:8443", "/public", false),
        ("192.0.2.9:80", "/", true),
        ("[::ffff:192.0.2.9]:80", "/", true),
        ("192.0.2.9:443", "/", false),
        ("c.test:443", "/", false),
    ] {
        assert_eq!(allows_request(&rules, host, path), allowed, "{host}{path}");
    }
    for (host, reason) in [
        ("a.test:1", "denied by the rule deny a.test/private"),
        ("c.test:1", "no rule allows it"),
    ] {
        let request = Subject::Request {
            method: "GET",
            path: "/private",
        };
        let denied = rules.decide(&to(host), request).unwrap_err();
        assert_eq!(denied.reason(), reason);
    }
}

#[test]
fn methods_decide_on_requests_and_not_on_opened_tunnels() {
    let rules = rules(&[
        "deny delete a.test/x",
        "allow GET,HEAD a.test",
        "deny POST b.test",
        "allow b.test",
    ]);
    for (host, method, path, allowed) in [
        ("a.test:443", "GET", "/x", true),
        ("a.test:443", "HEAD", "/", true),
        ("a.test:443", "get", "/", false),
        ("a.test:443", "POST", "/", false),
        ("a.test:443", "DELETE", "/x", false),
        ("b.test:443", "PUT", "/", true),
        ("b.test:443", "POST", "/", false),
        ("b.test:443", "Post", "/", false),
    ] {
        assert_eq!(
            allows_method(&rules, host, method, path),
            allowed,
            "{method} {host}{path}"
        );
    }
    for host in ["a.test:443", "b.test:443"] {
        assert!(allows(&rules, host, Subject::OpenedTunnel), "{host}");
        assert!(!allows(&rules, host, Subject::RelayedTunnel), "{host}");
    }
}

#[test]
fn named_port_is_relayed_unless_it_is_one_of_http_or_a_rule_needs_the_requests() {
    let rules = rules(&[
        "allow git.test:22",
        "allow *.db.test:5432",
        "allow api.test:8443",
        "allow api.test:9000/v1",
        "allow api.test:9000",
        "allow GET api.test:9001",
        "deny api.test:9002/x",
        "allow api.test:9002",
        "deny ftp.test:21",
        "allow *",
    ]);
    assert_eq!(rules.relayed_ports(), BTreeSet::from([22, 5432]));
    let opened = BTreeSet::from([8443, 9000, 9001, 9002]);
    assert_eq!(rules.opened_ports(), opened);
    for (host, relayed) in [
        ("git.test:22", true),
        ("x.db.test:5432", true),
        ("other.test:22", false),
        ("git.test:23", false),
        ("api.test:8443", false),
        ("api.test:9000", false),
        ("api.test:9001", false),
        ("api.test:9002", false),
        ("ftp.test:21", false),
    ] {
        assert_eq!(rules.relays(&to(host)), relayed, "{host}");
    }
}

#[test]
fn rule_for_localhost_includes_its_addresses_and_not_vice_versa() {
    let allowing = rules(&["allow localhost:8081"]);
    for (host, allowed) in [
        ("localhost:8081", true),
        ("127.0.0.1:8081", true),
        ("[::1]:8081", true),
        ("127.0.0.2:8081", false),
        ("127.0.0.1:80", false),
    ] {
        assert_eq!(
            allows(&allowing, host, Subject::RelayedTunnel),
            allowed,
            "{host}"
        );
    }
    for by_address in [
        rules(&["allow 127.0.0.1:8081"]),
        rules(&["deny 127.0.0.1", "allow *"]),
    ] {
        assert!(!allows(
            &by_address,
            "localhost:8081",
            Subject::RelayedTunnel
        ));
    }
}

#[test]
fn a_tunnel_is_decided_by_host_and_port() {
    let rules = rules(&[
        "deny a.test/private",
        "allow a.test",
        "allow b.test/public",
        "deny c.test",
        "allow *:443",
    ]);
    for (host, opened, relayed) in [
        ("a.test:80", true, false),
        ("b.test:80", true, false),
        ("b.test:443", true, true),
        ("c.test:443", false, false),
        ("d.test:443", true, true),
        ("d.test:80", false, false),
    ] {
        assert_eq!(
            allows(&rules, host, Subject::OpenedTunnel),
            opened,
            "{host}"
        );
        assert_eq!(
            allows(&rules, host, Subject::RelayedTunnel),
            relayed,
            "{host}"
        );
    }
}

/// NAT64, 6to4 and the like lead to the embedded address.
#[test]
fn ipv6_address_is_denied_with_the_embedded_ipv4_address_and_not_allowed_with_it() {
    let rules = rules(&["deny 192.0.2.0/24", "deny 198.51.100.1", "allow *"]);
    for host in [
        "192.0.2.1:80",
        "[::ffff:192.0.2.1]:80",
        "[64:ff9b::192.0.2.1]:80",
        "[2002:c000:201::]:80",
        "[64:ff9b::198.51.100.1]:80",
    ] {
        assert!(!allows_request(&rules, host, "/"), "{host}");
    }
    let rules = self::rules(&["allow 192.0.2.0/24"]);
    assert!(allows_request(&rules, "192.0.2.1:80", "/"));
    assert!(!allows_request(&rules, "[64:ff9b::192.0.2.1]:80", "/"));
}

#[test]
fn hosts_ports_and_paths_are_told_apart() {
    for (text, host, path, names) in [
        ("192.0.2.1", "192.0.2.1:1", "/x", HOST),
        ("192.0.2.0/24", "192.0.2.1:1", "/x", HOST),
        ("192.0.2.0/24/x", "192.0.2.1:1", "/x", PATH),
        ("192.0.2.0/24:1/x", "192.0.2.1:1", "/x", BOTH),
        ("192.0.2.1:1/24", "192.0.2.1:1", "/24", BOTH),
        ("192.0.2.1/x", "192.0.2.1:1", "/x", PATH),
        ("2001:db8::1", "[2001:db8::1]:1", "/x", HOST),
        ("2001:db8::/32", "[2001:db8::1]:1", "/x", HOST),
        ("[2001:db8::]/32:1/x", "[2001:db8::1]:1", "/x", BOTH),
        ("[2001:db8::1]:1/x", "[2001:db8::1]:1", "/x", BOTH),
        ("[2001:db8::1]/x", "[2001:db8::1]:1", "/x", PATH),
        ("*", "a.test:1", "/x", HOST),
        ("any", "a.test:1", "/x", HOST),
        ("GET a.test:1/x", "a.test:1", "/x", BOTH),
        ("*:1/x", "a.test:1", "/x", BOTH),
        (".test", "a.test:1", "/x", HOST),
        ("A.Test.:1", "a.test:1", "/x", PORT),
    ] {
        let rule = Rule::allow(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let rules = AccessRules::new(vec![rule]).unwrap().unwrap();
        assert!(allows_request(&rules, host, path), "{text}");
        let (address, _) = host.rsplit_once(':').unwrap();
        let is_any_port = allows_request(&rules, &format!("{address}:2"), path);
        assert_eq!(is_any_port, !names.port, "{text}");
        assert_eq!(allows_request(&rules, host, "/y"), !names.path, "{text}");
    }
}

/// The parts that a rule has beside the host.
#[derive(Clone, Copy)]
struct Names {
    port: bool,
    path: bool,
}

const HOST: Names = names(false, false);
const PORT: Names = names(true, false);
const PATH: Names = names(false, true);
const BOTH: Names = names(true, true);

const fn names(port: bool, path: bool) -> Names {
    Names { port, path }
}

#[test]
fn text_that_is_no_rule_is_refused() {
    for wrong in [
        "",
        "/x",
        ":1",
        "a test",
        "a.test:",
        "a.test:0",
        "a.test:65536",
        "a.test:http",
        "a.test:+1",
        "*.192.0.2.1",
        "192.0.2.0/33",
        "192.0.2.1/24",
        "https://a.test/",
        "GTE a.test",
        "GET,HAED a.test",
        "GET, HEAD a.test",
        "CONNECT a.test",
        "a.test 443",
        "a.test/..",
        "a.test//x",
        "a.test/x?y",
        "a.test/x#y",
        "a.test/%2e",
        "b\u{fc}cher.test",
        "127.1",
        "a*.test",
        "*a.test",
        "[2001:db8::1",
        "u@a.test",
    ] {
        assert!(Rule::allow(wrong).is_err(), "{wrong}");
        assert!(Rule::deny(wrong).is_err(), "{wrong}");
    }
    assert_eq!("permit a.test".parse::<Rule>(), Err(ParseRuleError::Action));
    assert_eq!("allow".parse::<Rule>(), Err(ParseRuleError::Action));
    let denies = vec![Rule::deny("a.test").unwrap()];
    assert_eq!(
        AccessRules::new(denies),
        Err(AccessRulesError::NothingAllowed)
    );
    assert_eq!(AccessRules::new(Vec::new()), Ok(None));
}

#[test]
fn port_behind_a_network_is_a_number() {
    let expected = ParseRuleError::Port(ParseHostError::Port);
    for text in ["10.0.0.0/8:4:43", "10.0.0.0/8:", "10.0.0.0/8:+443"] {
        assert_eq!(Rule::allow(text), Err(expected), "{text}");
    }
}

#[test]
fn syntax_of_other_programs_is_refused_with_advice() {
    for (text, expected) in [
        ("a.test/*", ParseRuleError::Wildcard),
        ("GET a.test/pub/*", ParseRuleError::Wildcard),
        ("192.0.2.0/24:80/*", ParseRuleError::Wildcard),
        ("POST", ParseRuleError::MethodAlone),
        ("GET,HEAD", ParseRuleError::MethodAlone),
        ("GET,HEAD:a.test/x", ParseRuleError::ColonBehindMethod),
        ("deny a.test", ParseRuleError::ActionInside),
        ("a.test GET", ParseRuleError::MethodBehind),
        ("git@a.test:org/repo", ParseRuleError::User),
        ("root@a.test:22", ParseRuleError::User),
        ("a.test,b.test", ParseRuleError::Several),
        ("a.test b.test", ParseRuleError::Several),
        ("a.test:443,8443", ParseRuleError::Several),
    ] {
        assert_eq!(Rule::allow(text), Err(expected), "{text}");
        assert_eq!(Rule::deny(text), Err(expected), "{text}");
    }
    for text in ["post", "get.test", "a.test/@scope,x", "a.test/%2A"] {
        assert!(Rule::allow(text).is_ok(), "{text}");
    }
}

#[test]
fn ipv6_address_that_could_have_a_port_needs_brackets() {
    for (text, suggestion) in [
        ("::1:22", "[::1]:22"),
        ("2001:db8::1:22", "[2001:db8::1]:22"),
        ("GET 2001:db8::1:22/x", "[2001:db8::1]:22"),
    ] {
        let error = Rule::allow(text).unwrap_err();
        let suggestion = suggestion.parse().unwrap();
        let expected = ParseRuleError::Unbracketed(suggestion);
        assert_eq!(error, expected, "{text}");
    }
    for unambiguous in [
        "::1",
        "2001:db8::1",
        "2001:db8::1:ff",
        "[2001:db8::1:22]",
        "[::1]:22",
        "2001:db8::/32",
    ] {
        assert!(Rule::allow(unambiguous).is_ok(), "{unambiguous}");
    }
    for to in [
        "[2001:db8::1]:443",
        "[2001:db8::1:22]:443",
        "[2001:db8::1:22]:22",
    ] {
        let to = HostPort::parse(to).unwrap();
        let rule = Rule::allow(&rule_for(&to)).unwrap();
        assert!(rule.allows_tunnel(&to), "{to}");
    }
}

/// A client chooses the name of a host, which may be a word of the syntax.
#[test]
fn rule_for_a_host_names_that_host_alone() {
    let a_test = rules(&["allow a.test"]);
    for host in [
        "any",
        "Any",
        "ANY",
        "any.",
        "allow",
        "deny",
        "GET",
        "get",
        "private",
        "_any",
        "a.any",
        "x.test",
        "192.0.2.7",
        "[2600::1]",
    ] {
        for port in [80, 443, 8080, 9000] {
            let to = to(&format!("{host}:{port}"));
            let request = Subject::Request {
                method: "GET",
                path: "/x",
            };
            let missing = a_test.missing_rule(&to, request).unwrap();
            for text in [rule_for(&to), rule_with_port(&to), missing] {
                let rule = Rule::allow(&text).unwrap();
                assert!(rule.names_one_host(), "{text}");
                assert!(rule.allows_tunnel(&to), "{text} for {to}");
            }
        }
    }
    let partial = rules(&["allow GET *.test/pub", "allow POST any./pub"]);
    let request = Subject::Request {
        method: "POST",
        path: "/x",
    };
    let missing = partial.missing_rule(&to("any:443"), request);
    assert_eq!(missing.as_deref(), Some("POST any./x"));
}

#[test]
fn rule_that_denies_nothing_is_found() {
    for (rules, denies_nothing) in [
        (&["allow a.test", "deny a.test"][..], true),
        (&["allow a.test", "deny a.test/x"], true),
        (&["allow *.test", "deny a.test"], true),
        (&["allow *.test", "deny *.a.test"], true),
        (&["allow any", "deny 192.0.2.0/24"], true),
        (&["allow 192.0.2.0/24", "deny 192.0.2.7"], true),
        (&["allow 192.0.2.7:8000", "deny 192.0.2.7:8000"], true),
        (&["allow localhost", "deny 127.0.0.1"], false),
        // The denial is for 64:ff9b::c000:207, too.
        (
            &["allow 192.0.2.0/24", "deny 192.0.2.7", "allow any"],
            false,
        ),
        (&["deny a.test", "allow a.test"], false),
        (&["allow a.test", "deny *.test"], false),
        (&["allow a.test:80", "deny a.test"], false),
        (&["allow GET a.test", "deny a.test"], false),
        (&["allow a.test/x", "deny a.test"], false),
        (&["allow *.test", "deny any"], false),
        (&["allow 192.0.2.0/25", "deny 192.0.2.0/24"], false),
    ] {
        let found = self::rules(rules).shadowed_rules().next().is_some();
        assert_eq!(found, denies_nothing, "{rules:?}");
    }
}
