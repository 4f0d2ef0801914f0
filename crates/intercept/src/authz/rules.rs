//! Access lists (`--allow`, `--deny`): the first rule that matches a request decides, before any check service is asked.
//!
//! A tunnel that the proxy opens is decided by host and port; then each request in it is decided by its method and path, too. The
//! requests in a tunnel that is relayed unopened are not visible, so a rule with a method or a path can't allow the tunnel.

mod error;
mod host_port_path;
mod lookalike;
mod methods;
mod path;
mod rule;

use std::collections::BTreeSet;
use std::sync::Arc;

use peername_proto::parse_unbracketed;

use crate::host::{Host, HostPort};
pub use error::ParseRuleError;
use methods::Methods;
use path::{ROOT, RequestPath, is_advisable};
pub use rule::Rule;
use rule::is_every_host;

/// Rules in the order in which they are tried. Without a match the request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRules(Vec<Rule>);

/// Why a list of rules is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessRulesError {
    /// No rule allows anything.
    #[error(
        "--deny without --allow denies every request, because what no rule allows is denied; add --allow HOST, or --allow '*' \
         for everything else"
    )]
    NothingAllowed,
}

/// What a decision is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// A tunnel whose requests are then decided on one by one.
    OpenedTunnel,
    /// A tunnel that is relayed unopened.
    RelayedTunnel,
    /// One request; the path is without the query.
    Request { method: &'a str, path: &'a str },
}

/// How exactly the rules that allow a destination name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Naming {
    /// A rule names the host itself, not a domain or a network.
    pub(crate) names_host: bool,
    /// A rule names the port.
    pub(crate) names_port: bool,
    /// One rule names both.
    pub(crate) names_both: bool,
}

impl Naming {
    /// Combines the naming of two lists.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            names_host: self.names_host || other.names_host,
            names_port: self.names_port || other.names_port,
            names_both: self.names_both || other.names_both,
        }
    }
}

/// A rule that denies nothing, because a rule before it allows the same requests.
#[derive(Clone, Copy, Debug)]
pub struct ShadowedRule<'a> {
    /// The rule that denies nothing.
    pub denial: &'a Rule,
    /// The rule before it.
    pub by: &'a Rule,
}

/// Why a request is denied.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeniedBy<'a> {
    Rule(&'a Rule),
    /// No rule matches.
    Default,
    /// No rule matches, because servers may read the path in different ways, and a rule allows some paths of this destination.
    AmbiguousPath,
    /// No rule matches, because no rule can name the method, and a rule allows some methods of this destination.
    UnknownMethod,
}

impl AccessRules {
    /// Creates a list of these rules; `None` if there are none.
    pub fn new(rules: Vec<Rule>) -> Result<Option<Self>, AccessRulesError> {
        match rules.iter().any(Rule::allows) {
            true => Ok(Some(Self(rules))),
            false if rules.is_empty() => Ok(None),
            false => Err(AccessRulesError::NothingAllowed),
        }
    }

    /// Creates a list that denies everything that these rules do not allow, even if there are none.
    #[must_use]
    pub fn deny_others(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Finds the rules that deny nothing.
    pub fn shadowed_rules(&self) -> impl Iterator<Item = ShadowedRule<'_>> {
        let last_allowing = self.0.iter().rposition(Rule::allows);
        let mut allowing: Vec<&Rule> = Vec::new();
        self.0.iter().enumerate().filter_map(move |(index, rule)| {
            if rule.allows() {
                allowing.push(rule);
                return None;
            }
            let is_after_last_allow = last_allowing.is_none_or(|last| last < index);
            let by = allowing
                .iter()
                .find(|by| by.shadows(rule, is_after_last_allow))?;
            Some(ShadowedRule { denial: rule, by })
        })
    }

    /// The ports of rules at which connections are opened as TLS and HTTP: HTTP's usual ports ([`HTTP_PORTS`]), and the ports
    /// of rules that need to see the requests.
    #[must_use]
    pub fn opened_ports(&self) -> BTreeSet<u16> {
        self.0
            .iter()
            .flat_map(|rule| {
                rule.named_ports()
                    .filter(|port| rule.is_partial() || rule.allows() && HTTP_PORTS.contains(port))
            })
            .collect()
    }

    /// The other ports of rules that allow: connections to them are relayed unopened.
    #[must_use]
    pub fn relayed_ports(&self) -> BTreeSet<u16> {
        let opened = self.opened_ports();
        self.0
            .iter()
            .filter(|rule| rule.allows())
            .flat_map(Rule::named_ports)
            .filter(|port| !opened.contains(port))
            .collect()
    }

    /// Whether connections to this destination are relayed unopened, because a rule names its port. Whether the tunnel is
    /// allowed is decided separately ([`Subject::RelayedTunnel`]).
    pub(crate) fn relays(&self, to: &HostPort) -> bool {
        !HTTP_PORTS.contains(&to.port)
            && self.allowing_rules(to).any(Rule::names_port)
            && !self.opened_ports().contains(&to.port)
    }

    /// How exactly the rules that allow this destination name it. A rule for some methods or paths counts only if all other
    /// rules name the destination as exactly: otherwise it would also be open to the requests that the others allow.
    pub(crate) fn naming(&self, to: &HostPort) -> Naming {
        let allowing: Vec<_> = self.allowing_rules(to).collect();
        let is_named = |names: fn(&Rule) -> bool| {
            allowing
                .iter()
                .any(|rule| !rule.is_partial() && names(rule))
                || !allowing.is_empty() && allowing.iter().all(|rule| names(rule))
        };
        Naming {
            names_host: is_named(Rule::names_one_host),
            names_port: is_named(Rule::names_port),
            names_both: is_named(|rule| rule.names_one_host() && rule.names_port()),
        }
    }

    /// The rules that allow requests to this destination, or some of them.
    fn allowing_rules(&self, to: &HostPort) -> impl Iterator<Item = &Rule> {
        self.0
            .iter()
            .filter(move |rule| rule.allows() && rule.matches_host_and_port(to))
    }

    /// Whether a rule that allows this destination names its host and its port, not only a domain, a network or every host.
    #[must_use]
    pub fn names_exactly(&self, to: &HostPort) -> bool {
        self.naming(to).names_both
    }

    /// The rules that allow some requests only, of those for this host, at whatever port.
    fn partial_rules(&self, host: &Host) -> impl Iterator<Item = &Rule> {
        self.0
            .iter()
            .filter(move |rule| rule.allows() && rule.is_partial() && rule.matches_name(host))
    }

    /// Whether rules for this host allow some requests only.
    pub(crate) fn limits_requests(&self, host: &Host) -> bool {
        self.partial_rules(host).next().is_some()
    }

    /// Suggests a rule for a subject that no rule matches. If rules for this host have methods or paths, also at another port,
    /// the suggestion has those of the request; `None` if it can't have them. If all of these rules have a port, the suggestion
    /// has one, too.
    pub(crate) fn missing_rule(&self, to: &HostPort, subject: Subject<'_>) -> Option<String> {
        let partial: Vec<_> = self.partial_rules(&to.host).collect();
        let is_limited_to_ports =
            !partial.is_empty() && partial.iter().all(|rule| rule.names_port());
        // A rule for a name without a port opens no private address to plain HTTP. Whether the name has such an address is not
        // looked up, so the port is suggested.
        let is_plain_name =
            to.port == 80 && to.host.as_ip().is_none() && self.allowing_rules(to).next().is_none();
        let host = if (is_limited_to_ports || is_plain_name) && !to.host.is_localhost_address() {
            rule_with_port(to)
        } else {
            rule_for(to)
        };
        let Subject::Request { method, path } = subject else {
            return Some(host);
        };
        let path = if path.is_empty() { ROOT } else { path };
        let needs_path = partial.iter().any(|rule| rule.has_path());
        let needs_method = partial.iter().any(|rule| rule.has_methods());
        let is_expressible =
            (!needs_path || is_advisable(path)) && (!needs_method || Methods::is_known(method));
        // A rule without the path or the method would allow what the present rules do not.
        if !is_expressible {
            return None;
        }
        let rule = match (needs_path, to.host.as_ip()) {
            (false, _) => host,
            (true, None) => format!("{host}{path}"),
            // With the port, because an address followed by a slash and a number is a network.
            (true, Some(_)) => format!("{to}{path}"),
        };
        Some(match needs_method {
            true => format!("{method} {rule}"),
            false => rule,
        })
    }

    /// Decides by the first rule that matches. Returns the rule that allows the subject.
    pub(crate) fn decide(
        &self,
        to: &HostPort,
        subject: Subject<'_>,
    ) -> Result<&Rule, DeniedBy<'_>> {
        let mut rules = self.0.iter();
        let first_match = match subject {
            Subject::Request { method, path } => {
                let path = RequestPath::parse(path);
                rules.find(|rule| rule.matches_request(to, method, &path))
            }
            Subject::OpenedTunnel => rules.find(|rule| rule.matches_opened_tunnel(to)),
            Subject::RelayedTunnel => rules.find(|rule| rule.matches_relayed_tunnel(to)),
        };
        match first_match {
            Some(rule) if rule.allows() => Ok(rule),
            Some(rule) => Err(DeniedBy::Rule(rule)),
            None if self.is_path_ambiguous(to, subject) => Err(DeniedBy::AmbiguousPath),
            None if self.is_method_unknown(to, subject) => Err(DeniedBy::UnknownMethod),
            None => Err(DeniedBy::Default),
        }
    }

    /// Whether the path is the reason that no rule matches: see [`DeniedBy::AmbiguousPath`].
    fn is_path_ambiguous(&self, to: &HostPort, subject: Subject<'_>) -> bool {
        let Subject::Request { path, .. } = subject else {
            return false;
        };
        matches!(RequestPath::parse(path), RequestPath::Ambiguous)
            && self.allowing_rules(to).any(Rule::has_path)
    }

    /// Whether the method is the reason that no rule matches: see [`DeniedBy::UnknownMethod`].
    fn is_method_unknown(&self, to: &HostPort, subject: Subject<'_>) -> bool {
        let Subject::Request { method, .. } = subject else {
            return false;
        };
        !Methods::is_known(method) && self.allowing_rules(to).any(Rule::has_methods)
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
            Self::UnknownMethod => {
                "no rule allows it: a rule with methods can't name this one (case matters: `post` is not POST)".to_owned()
            }
        }
    }

    pub(crate) fn rule_text(self) -> Option<Arc<str>> {
        match self {
            Self::Rule(rule) => Some(rule.text()),
            Self::Default | Self::AmbiguousPath | Self::UnknownMethod => None,
        }
    }
}

/// The shortest rule that allows this destination, as `--allow` takes it.
#[must_use]
pub fn rule_for(to: &HostPort) -> String {
    match to.port {
        // `localhost` includes 127.0.0.1 and ::1: the server may listen on either.
        port if to.host.is_localhost_address() => format!("localhost:{port}"),
        80 | 443 => {
            let host = to.host.to_string();
            // The end of an IPv6 address could be read as a port.
            match parse_unbracketed(&host) {
                Some(_) => format!("[{host}]"),
                None if is_every_host(&host) => format!("{host}."),
                None => host,
            }
        }
        _ => rule_with_port(to),
    }
}

/// The rule that allows this destination at its port alone, as `--allow` and `--allow-tcp` take it.
#[must_use]
pub fn rule_with_port(to: &HostPort) -> String {
    match to.host.as_name() {
        Some(name) if is_every_host(name) => format!("{name}.:{}", to.port),
        _ => to.to_string(),
    }
}

/// The usual ports of HTTP. Connections to them are opened even if a rule names the port.
pub const HTTP_PORTS: [u16; 5] = [80, 443, 8000, 8080, 8443];

#[cfg(test)]
mod tests;
