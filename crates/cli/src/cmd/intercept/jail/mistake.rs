//! Typical mistakes on the command line of `peername jail`, and what to type instead.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ErrorKind};
use peername_intercept::authz::Rule;
use peername_observe::shell::quote;

use crate::separator::{self, context_text};

/// Explains how to correct words that clap refuses; `None` if clap's own message is enough.
pub(crate) fn explain_mistake(words: &[OsString], error: &clap::Error) -> Option<String> {
    match error.kind() {
        ErrorKind::UnknownArgument => {
            explain_word(words, &context_text(error, ContextKind::InvalidArg)?)
        }
        ErrorKind::ArgumentConflict => explain_learn(error),
        ErrorKind::MissingRequiredArgument => separator::explain_no_program("jail", words, error),
        ErrorKind::ValueValidation => explain_rule(error),
        _ => None,
    }
}

/// Explains a URL or a file in the place of a rule, with the rule that was probably meant.
fn explain_rule(error: &clap::Error) -> Option<String> {
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

/// Explains a word that is neither an option nor after `--`.
fn explain_word(words: &[OsString], unknown: &str) -> Option<String> {
    let texts: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let at = texts.iter().position(|word| word == unknown)?;
    let before = at.checked_sub(1).and_then(|at| texts.get(at));
    if let (Some(host), Ok(port)) = (before, unknown.parse::<u16>()) {
        return Some(format!(
            "the port {port} follows a space: write it after the host and a colon, as in {host}:{port}"
        ));
    }
    separator::explain_missing("jail", words, unknown)
}

/// Explains a conflict of `--learn` with another option.
fn explain_learn(error: &clap::Error) -> Option<String> {
    let pair =
        [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| context_text(error, kind));
    let [Some(option), Some(prior)] = pair else {
        return None;
    };
    let names_learn = option != prior && (option.contains("--learn") || prior.contains("--learn"));
    names_learn.then(|| {
        "--learn allows everything, and lists it: it goes without --allow, --deny, --check, --check-list, --ask and --ask-list\n\
         `peername jail --learn FILE -- CMD` adds to a FILE that exists; `peername jail --allow @FILE -- CMD` applies it"
            .to_owned()
    })
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
