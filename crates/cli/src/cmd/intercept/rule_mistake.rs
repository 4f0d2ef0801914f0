//! Typical mistakes in a rule (`--allow`, `--deny`), and what to type instead.

use std::path::Path;

use clap::error::ContextKind;
use peername_intercept::authz::Rule;
use peername_observe::shell::quote;

use crate::separator::context_text;

/// Explains a URL or a file in the place of a rule, with the rule that was probably meant.
pub(crate) fn explain_rule(error: &clap::Error) -> Option<String> {
    let option = context_text(error, ContextKind::InvalidArg)?;
    let option = option.split_whitespace().next()?;
    let is_rule = ["--allow", "--deny"].contains(&option);
    let value = context_text(error, ContextKind::InvalidValue).filter(|_| is_rule)?;
    if Path::new(&value).is_file() {
        let list = quote(&format!("@{value}")).into_owned();
        return Some(format!(
            "{option} {value} is a file: for the rules in it write {option} {list}"
        ));
    }
    let rule = url_to_rule(&value)?;
    Some(format!(
        "{option} {value}: a rule has no scheme; write {option} {}",
        quote(&rule)
    ))
}

/// Returns the rule for requests to a URL, if there is one. It has the port that the scheme implies, except with TLS, where a
/// certificate proves the name.
fn url_to_rule(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next()?;
    let implied_port = match scheme {
        "https" | "wss" => "",
        "http" | "ws" => ":80",
        "ssh" | "git+ssh" | "sftp" => ":22",
        "git" => ":9418",
        "postgres" | "postgresql" => ":5432",
        "mysql" => ":3306",
        "redis" | "rediss" => ":6379",
        "mongodb" => ":27017",
        _ => return None,
    };
    let shows_requests = matches!(scheme, "http" | "https" | "ws" | "wss");
    let has_port = Rule::allow(host).is_ok_and(|rule| rule.names_port());
    let port = if has_port { "" } else { implied_port };
    // A relayed connection shows no path.
    let path = match path {
        "/" => "",
        _ if !shows_requests => "",
        path => path,
    };
    let rule = format!("{host}{port}{path}");
    Rule::allow(&rule).is_ok().then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_rewritten_as_the_rule_that_is_meant() {
        for (url, rule) in [
            ("ssh://git.example.com", Some("git.example.com:22")),
            (
                "ssh://git@git.example.com:2222/org/repo",
                Some("git.example.com:2222"),
            ),
            ("http://localhost:3000", Some("localhost:3000")),
            ("https://example.com/", Some("example.com")),
            ("http://example.com/pub", Some("example.com:80/pub")),
            ("postgres://u:p@db.corp:5433/x", Some("db.corp:5433")),
            ("redis://cache.corp", Some("cache.corp:6379")),
            ("file:///etc/hosts", None),
            ("https://example.com/pub", Some("example.com/pub")),
            ("https://[2001:db8::1]:8443/", Some("[2001:db8::1]:8443")),
            ("https://example.com/pub?x=1", None),
            ("example.com", None),
        ] {
            assert_eq!(url_to_rule(url).as_deref(), rule, "{url}");
        }
    }
}
