//! Access lists (`--allow`, `--deny`): the first rule that matches a request decides, before any check service is asked.
//!
//! A tunnel that the proxy will open is decided by host and port: each request inside it is decided again, with its path. A
//! tunnel that is relayed unopened shows no path, so a rule with a path can't allow it.

mod lookalike;
mod path;
mod rule;

use std::sync::Arc;

use crate::host::HostPort;
use path::RequestPath;
pub use rule::{ParseRuleError, Rule};

/// Rules in the order in which they are tried. Without a match the request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRules(Vec<Rule>);

/// Why a list of rules is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessRulesError {
    /// Nothing could be allowed.
    #[error(
        "--deny without --allow denies every request, because what no rule allows is denied; add --allow HOST, or --allow '*' \
         for everything else"
    )]
    NothingAllowed,
}

/// What is decided on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// A tunnel with requests that are decided on one by one.
    OpenedTunnel,
    /// A tunnel with bytes that are relayed as they are.
    RelayedTunnel,
    /// One request, by its path without the query.
    Request(&'a str),
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeniedBy<'a> {
    Rule(&'a Rule),
    /// No rule matches.
    Default,
}

impl AccessRules {
    /// A list of these rules; `None` for no rules, which decide nothing.
    pub fn new(rules: Vec<Rule>) -> Result<Option<Self>, AccessRulesError> {
        match rules.iter().any(Rule::allows) {
            true => Ok(Some(Self(rules))),
            false if rules.is_empty() => Ok(None),
            false => Err(AccessRulesError::NothingAllowed),
        }
    }

    /// Returns the rule that allows it.
    pub(crate) fn decide(
        &self,
        to: &HostPort,
        subject: Subject<'_>,
    ) -> Result<&Rule, DeniedBy<'_>> {
        let path = match subject {
            Subject::Request(path) => Some(RequestPath::parse(path)),
            Subject::OpenedTunnel | Subject::RelayedTunnel => None,
        };
        let matches = |rule: &&Rule| match (&path, subject) {
            (Some(path), _) => rule.matches_request(to, path),
            (None, Subject::OpenedTunnel) => rule.matches_opened_tunnel(to),
            (None, _) => rule.matches_relayed_tunnel(to),
        };
        match self.0.iter().find(matches) {
            Some(rule) if rule.allows() => Ok(rule),
            Some(rule) => Err(DeniedBy::Rule(rule)),
            None => Err(DeniedBy::Default),
        }
    }
}

impl DeniedBy<'_> {
    /// The reason, for the client and the log.
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Rule(rule) => format!("denied by the rule {rule}"),
            Self::Default => "no rule allows it".to_owned(),
        }
    }

    pub(crate) fn rule_text(self) -> Option<Arc<str>> {
        match self {
            Self::Rule(rule) => Some(rule.text()),
            Self::Default => None,
        }
    }
}

#[cfg(test)]
mod tests;
