//! One rule of an access list, and its syntax.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::Arc;

use peername_proto::meanings;

use super::error::ParseRuleError;
use super::host_port_path::{Parts, PortPattern};
use super::methods::Methods;
use super::path::{PathPrefix, RequestPath};
use crate::host::{Host, HostPort};
use crate::policy::host_pattern::HostPattern;

/// A rule: `allow [METHOD[,METHOD] ]HOST[:PORT][/PATH]`, or the same with `deny`.
///
/// `HOST` is a name, `*.example.com` for every name below `example.com`, an address, a network, or `*` or `any` for every host,
/// where `any.` is the host of that name.
/// A rule without methods matches every method, without a port every port, without a path every path. `localhost` includes
/// 127.0.0.1 and `::1`. An address followed by a slash and a number is a network; `192.0.2.1:443/24` is an address with a path.
/// An IPv6 address needs brackets if a port follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    action: Action,
    methods: Option<Methods>,
    /// `None` for every host.
    host: Option<HostPattern>,
    port: PortPattern,
    path: Option<PathPrefix>,
    text: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allow,
    Deny,
}

impl Rule {
    /// Parses the rule of `--allow`.
    pub fn allow(text: &str) -> Result<Self, ParseRuleError> {
        Self::parse(Action::Allow, text)
    }

    /// Parses the rule of `--deny`.
    pub fn deny(text: &str) -> Result<Self, ParseRuleError> {
        Self::parse(Action::Deny, text)
    }

    fn parse(action: Action, text: &str) -> Result<Self, ParseRuleError> {
        let (methods, destination) = split_methods(text)?;
        refuse_foreign_syntax(destination)?;
        let Parts { host, port, path } = Parts::split(destination)?;
        let host = match host.as_str() {
            host if is_every_host(host) => None,
            host => Some(host.parse()?),
        };
        let path = path.map(|path| PathPrefix::parse(path).ok_or(ParseRuleError::Path));
        Ok(Self {
            action,
            methods,
            host,
            port,
            path: path.transpose()?,
            text: format!("{} {text}", action.name()).into(),
        })
    }

    /// The ports that the rule names; none if it is for every port.
    pub fn named_ports(&self) -> impl Iterator<Item = u16> {
        self.port.named()
    }

    /// Whether the rule has a port.
    pub fn names_port(&self) -> bool {
        self.named_ports().next().is_some()
    }

    /// Whether the rule allows every request to this host and port.
    pub fn allows_tunnel(&self, to: &HostPort) -> bool {
        self.allows() && self.matches_relayed_tunnel(to)
    }

    /// Whether the rule is for some methods or paths only, so that the requests have to be read.
    pub(crate) fn is_partial(&self) -> bool {
        self.path.is_some() || self.methods.is_some()
    }

    pub(super) fn has_methods(&self) -> bool {
        self.methods.is_some()
    }

    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// Whether the host is one name or address.
    pub(crate) fn names_one_host(&self) -> bool {
        matches!(self.host, Some(HostPattern::Host(_)))
    }

    pub(super) fn allows(&self) -> bool {
        self.action == Action::Allow
    }

    /// The rule as it was written.
    pub(crate) fn text(&self) -> Arc<str> {
        Arc::clone(&self.text)
    }

    /// Whether this rule, which allows and comes before `denial`, leaves nothing for it to deny.
    ///
    /// The denial of an IPv4 address also covers the IPv6 addresses that embed it, which this rule does not allow. So such a
    /// denial has an effect, unless no rule after it allows anything (`is_after_last_allow`).
    pub(super) fn shadows(&self, denial: &Self, is_after_last_allow: bool) -> bool {
        !self.is_partial()
            && self.port.covers(denial.port)
            && self.covers_hosts_of(denial, is_after_last_allow)
    }

    fn covers_hosts_of(&self, denial: &Self, is_after_last_allow: bool) -> bool {
        match (&self.host, &denial.host) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(host), Some(denied)) => {
                let is_name = match denied {
                    HostPattern::Host(host) => host.as_ip().is_none(),
                    HostPattern::Below(_) => true,
                    HostPattern::Network(_) => false,
                };
                (is_name || is_after_last_allow) && host.covers(denied)
            }
        }
    }

    pub(super) fn matches_request(
        &self,
        to: &HostPort,
        method: &str,
        path: &RequestPath<'_>,
    ) -> bool {
        self.matches_host_and_port(to) && self.matches_method(method) && self.matches_path(path)
    }

    fn matches_method(&self, method: &str) -> bool {
        match (&self.methods, self.action) {
            (None, _) => true,
            (Some(methods), Action::Allow) => methods.include(method),
            (Some(methods), Action::Deny) => methods.may_include(method),
        }
    }

    fn matches_path(&self, path: &RequestPath<'_>) -> bool {
        match (&self.path, self.action) {
            (None, _) => true,
            (Some(prefix), Action::Allow) => prefix.covers(path),
            (Some(prefix), Action::Deny) => prefix.may_cover(path),
        }
    }

    /// Whether the rule decides on a CONNECT whose requests are decided on later, one by one. A rule for some requests allows the
    /// CONNECT, because these requests may follow, and does not deny it, because others may follow.
    pub(super) fn matches_opened_tunnel(&self, to: &HostPort) -> bool {
        self.matches_host_and_port(to) && (!self.is_partial() || self.action == Action::Allow)
    }

    /// Whether the rule decides on a tunnel that is relayed unopened. A rule for some requests denies the tunnel, because these
    /// requests may follow, and does not allow it, because others may follow.
    pub(super) fn matches_relayed_tunnel(&self, to: &HostPort) -> bool {
        self.matches_host_and_port(to) && (!self.is_partial() || self.action == Action::Deny)
    }

    pub(super) fn matches_host_and_port(&self, to: &HostPort) -> bool {
        self.port.includes(to.port) && self.matches_name(&to.host)
    }

    /// Whether the rule is for this host, at some port.
    pub(super) fn matches_name(&self, host: &Host) -> bool {
        self.host
            .as_ref()
            .is_none_or(|pattern| self.matches_host(pattern, host))
    }

    /// A rule that denies an IPv4 address also denies the IPv6 addresses that embed it (NAT64, 6to4), because they may lead
    /// there; a rule that allows it does not allow these. Likewise `deny 127.0.0.1` also denies `localhost`, and `allow
    /// localhost` also allows its addresses, but `allow 127.0.0.1` does not allow `localhost`.
    fn matches_host(&self, pattern: &HostPattern, host: &Host) -> bool {
        match (self.action, pattern, host.as_ip()) {
            (Action::Allow, HostPattern::Host(allowed), Some(_)) if allowed.is_localhost() => {
                host.is_localhost_address()
            }
            (Action::Deny, HostPattern::Host(denied), _) if denied.is_same_as(host) => true,
            (Action::Deny, _, Some(ip)) => meanings(ip).any(|ip| pattern.includes(&ip.into())),
            _ => pattern.includes(host),
        }
    }
}

/// Whether a host of a rule stands for every host. A host of that name is written with its final dot: `any.`.
pub(super) fn is_every_host(host: &str) -> bool {
    matches!(host, "*" | "any")
}

/// Splits a rule into the methods before its first space, and its destination.
fn split_methods(text: &str) -> Result<(Option<Methods>, &str), ParseRuleError> {
    let Some((methods, destination)) = text.split_once(char::is_whitespace) else {
        // In lower case the text may be a host.
        let is_method =
            |text: &str| text == text.to_ascii_uppercase() && Methods::parse(text).is_some();
        return match text.split_once(':') {
            _ if is_method(text) => Err(ParseRuleError::MethodAlone),
            Some((methods, rest)) if is_method(methods) && rest.parse::<u16>().is_err() => {
                Err(ParseRuleError::ColonBehindMethod)
            }
            _ => Ok((None, text)),
        };
    };
    let destination = destination.trim_start();
    match Methods::parse(methods) {
        Some(methods) => Ok((Some(methods), destination)),
        None if matches!(methods, "allow" | "deny") => Err(ParseRuleError::ActionInside),
        None if Methods::parse(destination).is_some() => Err(ParseRuleError::MethodBehind),
        None if destination.parse::<u16>().is_ok() => Err(ParseRuleError::SpaceBeforePort),
        // No method has a dot: it is a host.
        None if methods.contains('.') => Err(ParseRuleError::Several),
        None => Err(ParseRuleError::Method),
    }
}

/// Refuses the syntax of URLs, ssh, lists and wildcards, with an error that tells what to write instead.
fn refuse_foreign_syntax(destination: &str) -> Result<(), ParseRuleError> {
    if destination.contains("://") {
        return Err(ParseRuleError::Scheme);
    }
    let (authority, path) = destination.split_once('/').unwrap_or((destination, ""));
    if authority.contains('@') {
        return Err(ParseRuleError::User);
    }
    if authority.contains(',') {
        return Err(ParseRuleError::Several);
    }
    match path.contains('*') {
        true => Err(ParseRuleError::Wildcard),
        false => Ok(()),
    }
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    fn from_str(text: &str) -> Result<Self, ParseRuleError> {
        match text.split_once(' ') {
            Some(("allow", rest)) => Self::allow(rest.trim()),
            Some(("deny", rest)) => Self::deny(rest.trim()),
            _ => Err(ParseRuleError::Action),
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
