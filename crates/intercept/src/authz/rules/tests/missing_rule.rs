//! The rule that is suggested for a request that none allows, and the reason of the denial.

use super::*;

#[test]
fn missing_rule_has_the_path_if_other_rules_of_the_host_have_paths() {
    let rules = rules(&[
        "allow a.test/pub",
        "allow GET b.test/v1",
        "allow 192.0.2.1:443/x",
        "allow GET d.test",
    ]);
    for (host, path, expected) in [
        ("a.test:443", "/b/1", "a.test/b/1"),
        ("a.test:443", "/%40x", "a.test/%40x"),
        ("b.test:443", "/v1/x", "POST b.test/v1/x"),
        ("192.0.2.1:443", "/24", "192.0.2.1:443/24"),
        ("d.test:443", "/b", "POST d.test"),
        ("e.test:443", "/b", "e.test"),
        ("e.test:443", "/$(id)", "e.test"),
        ("a.test:443", "/", "a.test/"),
        ("d.test:443", "/", "POST d.test"),
    ] {
        let request = Subject::Request {
            method: "POST",
            path,
        };
        let rule = rules.missing_rule(&to(host), request).unwrap();
        assert_eq!(rule, expected, "{host}{path}");
        let rule = AccessRules::deny_others(vec![Rule::allow(&rule).unwrap()]);
        assert!(allows_method(&rule, host, "POST", path), "{host}{path}");
    }
}

/// The rules of the host name another port, or this one: the suggestion opens no more than this port, method and path.
#[test]
fn missing_rule_is_no_wider_than_rules_of_the_host_at_another_port() {
    let rules = rules(&[
        "allow GET,HEAD a.test:443/pub",
        "allow GET b.test:443",
        "allow 192.0.2.1:443/x",
        "allow GET localhost:3000",
    ]);
    for (host, path, expected) in [
        ("a.test:80", "/pub/file", "POST a.test:80/pub/file"),
        ("a.test:443", "/pub/file", "POST a.test:443/pub/file"),
        ("a.test:80", "/", "POST a.test:80/"),
        ("b.test:80", "/x", "POST b.test:80"),
        ("b.test:443", "/x", "POST b.test:443"),
        ("192.0.2.1:443", "/y", "192.0.2.1:443/y"),
        ("localhost:3001", "/y", "POST localhost:3001"),
        ("127.0.0.1:3001", "/y", "POST localhost:3001"),
        ("c.test:80", "/x", "c.test:80"),
    ] {
        let method = "POST";
        let rule = rules.missing_rule(&to(host), Subject::Request { method, path });
        assert_eq!(rule.as_deref(), Some(expected), "{host}{path}");
    }
    for (host, is_limited) in [("a.test", true), ("127.0.0.1", true), ("c.test", false)] {
        let to = to(&format!("{host}:1"));
        assert_eq!(rules.limits_requests(&to.host), is_limited, "{host}");
    }
}

/// Methods are case-sensitive, and rules name those of the registry only.
#[test]
fn method_is_the_reason_only_if_a_rule_of_the_host_has_methods() {
    let rules = rules(&["allow GET a.test", "allow b.test/pub"]);
    for (host, method, is_reason) in [
        ("a.test:443", "post", true),
        ("a.test:443", "FOO", true),
        ("a.test:443", "POST", false),
        ("b.test:443", "FOO", false),
    ] {
        let path = "/x";
        let request = Subject::Request { method, path };
        let denied = rules.decide(&to(host), request).unwrap_err();
        let is_method = matches!(denied, DeniedBy::UnknownMethod);
        assert_eq!(is_method, is_reason, "{method} {host}");
        assert_eq!(denied.reason().contains("method"), is_reason);
    }
}

#[test]
fn no_rule_is_suggested_that_would_allow_more() {
    let rules = rules(&[
        "allow a.test/pub",
        "allow GET b.test/v1",
        "allow GET c.test",
    ]);
    for (host, method, path, reason) in [
        ("a.test:443", "GET", "/a/../b", "a rule has no dot segments"),
        ("a.test:443", "GET", "/$(id)", "a shell would run it"),
        ("b.test:443", "GET", "/'$(id)'", "a shell would run it"),
        ("c.test:443", "FETCH", "/", "a rule has known methods only"),
    ] {
        let request = Subject::Request { method, path };
        let rule = rules.missing_rule(&to(host), request);
        assert_eq!(rule, None, "{method} {host}{path}: {reason}");
    }
}

#[test]
fn ambiguous_path_is_the_reason_only_if_a_rule_of_the_host_has_a_path() {
    let rules = rules(&["allow a.test/pub", "allow POST b.test"]);
    for (host, path, is_reason) in [
        ("a.test:443", "/pub/@a%2fb", true),
        ("a.test:443", "/other", false),
        ("b.test:443", "/pub/@a%2fb", false),
        ("c.test:443", "/pub/@a%2fb", false),
    ] {
        let request = Subject::Request {
            method: "GET",
            path,
        };
        let denied = rules.decide(&to(host), request).unwrap_err();
        let is_ambiguous = matches!(denied, DeniedBy::AmbiguousPath);
        assert_eq!(is_ambiguous, is_reason, "{host}{path}");
    }
}

#[test]
fn missing_rule_has_the_method_if_other_rules_of_the_host_have_methods() {
    let rules = rules(&[
        "allow GET,HEAD a.test",
        "allow b.test:8443",
        "allow GET *.c.test/x",
    ]);
    for (host, method, expected) in [
        ("a.test:443", "POST", "POST a.test"),
        ("a.test:8080", "POST", "POST a.test:8080"),
        ("x.c.test:80", "PUT", "PUT x.c.test/"),
        ("b.test:443", "POST", "b.test"),
        ("d.test:443", "POST", "d.test"),
        ("d.test:443", "FETCH", "d.test"),
        ("d.test:80", "POST", "d.test:80"),
        ("192.0.2.1:80", "POST", "192.0.2.1"),
    ] {
        let request = Subject::Request { method, path: "/" };
        let rule = rules.missing_rule(&to(host), request).unwrap();
        assert_eq!(rule, expected, "{host} {method}");
        assert!(Rule::allow(&rule).is_ok());
    }
    let tunnel = rules.missing_rule(&to("a.test:443"), Subject::OpenedTunnel);
    assert_eq!(tunnel.as_deref(), Some("a.test"));
}
