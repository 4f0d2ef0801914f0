//! Access lists (`--allow`, `--deny`): the first rule that matches a request decides, before any check service is asked.
//!
//! A tunnel that the proxy will open is decided by host and port: each request inside it is decided again, with its method and
//! path. A tunnel that is relayed unopened shows neither, so a rule with a method or a path can't allow it.

mod lookalike;
mod methods;
mod path;
mod rule;

use std::collections::BTreeSet;
use std::sync::Arc;

use peername_proto::parse_unbracketed;

use crate::host::HostPort;
use methods::Methods;
use path::{RequestPath, is_advisable};
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
    /// One request, by its method and its path without the query.
    Request { method: &'a str, path: &'a str },
}

/// What of a destination is named by rules that allow requests to it, not only included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Naming {
    /// Its host: one name or address, no domain or network.
    pub(crate) host: bool,
    /// Its port.
    pub(crate) port: bool,
    /// Both, by one rule.
    pub(crate) host_and_port: bool,
}

impl Naming {
    /// What either of two lists names.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            host: self.host || other.host,
            port: self.port || other.port,
            host_and_port: self.host_and_port || other.host_and_port,
        }
    }
}

/// A rule that denies nothing.
#[derive(Clone, Copy, Debug)]
pub struct Overruled<'a> {
    /// The rule.
    pub denial: &'a Rule,
    /// The rule before it that allows what it is for.
    pub by: &'a Rule,
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeniedBy<'a> {
    Rule(&'a Rule),
    /// No rule matches.
    Default,
    /// No rule matches, and one that allows a path might, if it were known how the origin reads the request's.
    AmbiguousPath,
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

    /// A list that denies everything but these rules.
    #[must_use]
    pub fn deny_others(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// The rules that deny nothing, because one before them allows it.
    pub fn overruled(&self) -> impl Iterator<Item = Overruled<'_>> {
        let last_allowing = self.0.iter().rposition(Rule::allows);
        let mut allowing: Vec<&Rule> = Vec::new();
        self.0.iter().enumerate().filter_map(move |(index, rule)| {
            if rule.allows() {
                allowing.push(rule);
                return None;
            }
            let is_last_word = last_allowing.is_none_or(|last| last < index);
            let by = allowing
                .iter()
                .find(|by| by.overrules(rule, is_last_word))?;
            Some(Overruled { denial: rule, by })
        })
    }

    /// The ports that rules name whose connections are opened as TLS and HTTP: HTTP's usual ones ([`HTTP_PORTS`]), and those of
    /// rules that need to see the requests.
    #[must_use]
    pub fn opened_ports(&self) -> BTreeSet<u16> {
        self.0
            .iter()
            .filter_map(|rule| {
                rule.port()
                    .filter(|port| rule.is_partial() || rule.allows() && HTTP_PORTS.contains(port))
            })
            .collect()
    }

    /// The other ports that rules allow by name, whose connections are relayed unopened.
    #[must_use]
    pub fn relayed_ports(&self) -> BTreeSet<u16> {
        let opened = self.opened_ports();
        self.0
            .iter()
            .filter(|rule| rule.allows())
            .filter_map(Rule::port)
            .filter(|port| !opened.contains(port))
            .collect()
    }

    /// Whether a rule names this destination as one whose connections are relayed unopened. Whether it is allowed is another
    /// question ([`Subject::RelayedTunnel`]).
    pub(crate) fn relays(&self, to: &HostPort) -> bool {
        !HTTP_PORTS.contains(&to.port)
            && self.names(to, |rule| rule.port().is_some())
            && !self
                .0
                .iter()
                .any(|rule| rule.is_partial() && rule.port() == Some(to.port))
    }

    /// How a rule that allows requests to this destination names it. A rule for some methods or paths counts only where no other
    /// one allows further requests: what it names would be open for those, too.
    pub(crate) fn naming(&self, to: &HostPort) -> Naming {
        let allowing: Vec<_> = self
            .0
            .iter()
            .filter(|rule| rule.allows() && rule.matches_host_and_port(to))
            .collect();
        let is_named = |how: fn(&Rule) -> bool| {
            allowing.iter().any(|rule| !rule.is_partial() && how(rule))
                || !allowing.is_empty() && allowing.iter().all(|rule| how(rule))
        };
        Naming {
            host: is_named(Rule::names_one_host),
            port: is_named(|rule| rule.port().is_some()),
            host_and_port: is_named(|rule| rule.names_one_host() && rule.port().is_some()),
        }
    }

    /// Whether a rule that allows this destination names its host and its port, not only a domain, a network or every host.
    #[must_use]
    pub fn names_exactly(&self, to: &HostPort) -> bool {
        self.naming(to).host_and_port
    }

    /// The rule that would allow what no rule decides on. It is for the method and the path of the request where others are allowed
    /// by theirs; `None` where no rule can be for this one.
    pub(crate) fn missing_rule(&self, to: &HostPort, subject: Subject<'_>) -> Option<String> {
        let host = rule_for(to);
        let Subject::Request { method, path } = subject else {
            return Some(host);
        };
        let rule = match self.names(to, Rule::has_path) && path.len() > 1 {
            // One for the host would allow all that the others do not.
            true if !is_advisable(path) => return None,
            // An address with a number behind its slash would be a network.
            true if to.host.as_ip().is_some() => format!("{to}{path}"),
            true => format!("{host}{path}"),
            false => host,
        };
        match self.names(to, Rule::has_methods) {
            true => Methods::are_known(method).then(|| format!("{method} {rule}")),
            false => Some(rule),
        }
    }

    fn names(&self, to: &HostPort, how: impl Fn(&Rule) -> bool) -> bool {
        self.0
            .iter()
            .any(|rule| rule.allows() && rule.matches_host_and_port(to) && how(rule))
    }

    /// Returns the rule that allows it.
    pub(crate) fn decide(
        &self,
        to: &HostPort,
        subject: Subject<'_>,
    ) -> Result<&Rule, DeniedBy<'_>> {
        let found = match subject {
            Subject::Request { method, path } => {
                let path = RequestPath::parse(path);
                let mut rules = self.0.iter();
                rules.find(|rule| rule.matches_request(to, method, &path))
            }
            Subject::OpenedTunnel => self.0.iter().find(|rule| rule.matches_opened_tunnel(to)),
            Subject::RelayedTunnel => self.0.iter().find(|rule| rule.matches_relayed_tunnel(to)),
        };
        match found {
            Some(rule) if rule.allows() => Ok(rule),
            Some(rule) => Err(DeniedBy::Rule(rule)),
            None if self.may_be_of_another_path(to, subject) => Err(DeniedBy::AmbiguousPath),
            None => Err(DeniedBy::Default),
        }
    }

    /// Whether a rule may be for this path, but servers may read it as different ones.
    fn may_be_of_another_path(&self, to: &HostPort, subject: Subject<'_>) -> bool {
        let Subject::Request { path, .. } = subject else {
            return false;
        };
        matches!(RequestPath::parse(path), RequestPath::Ambiguous) && self.names(to, Rule::has_path)
    }
}

impl DeniedBy<'_> {
    /// The reason, for the client and the log.
    pub(crate) fn reason(self) -> String {
        match self {
            Self::Rule(rule) => format!("denied by the rule {rule}"),
            Self::Default => "no rule allows it".to_owned(),
            Self::AmbiguousPath => {
                "no rule allows it: servers may read this path as different ones".to_owned()
            }
        }
    }

    pub(crate) fn rule_text(self) -> Option<Arc<str>> {
        match self {
            Self::Rule(rule) => Some(rule.text()),
            Self::Default | Self::AmbiguousPath => None,
        }
    }
}

/// The shortest rule that allows requests to this destination, as `--allow` and a list have it.
#[must_use]
pub fn rule_for(to: &HostPort) -> String {
    match to.port {
        // The name is both addresses of the host's loopback; a server may listen on one only.
        port if to.host.is_loopback() => format!("localhost:{port}"),
        80 | 443 => {
            let host = to.host.to_string();
            // Its end might be a port.
            match parse_unbracketed(&host) {
                Some(_) => format!("[{host}]"),
                None => host,
            }
        }
        _ => to.to_string(),
    }
}

/// The ports that are taken for HTTP's: their connections are opened, never relayed because a rule names the port.
pub const HTTP_PORTS: [u16; 5] = [80, 443, 8000, 8080, 8443];

#[cfg(test)]
mod tests;
