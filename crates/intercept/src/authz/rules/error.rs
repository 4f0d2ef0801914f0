//! The errors in the syntax of a rule, each with what to write instead.

use std::net::SocketAddrV6;

use crate::host::ParseHostError;
use crate::policy::host_pattern::ParseHostPatternError;

/// Why a text is not a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseRuleError {
    /// Neither `allow` nor `deny` at the beginning.
    #[error(
        "a rule begins with the word allow or deny, and a host follows: \"allow [METHOD[,METHOD] ]HOST[:PORT][/PATH]\""
    )]
    Action,
    /// The word before the host is not a method.
    #[error(
        "the word before the host is not an HTTP method; write GET example.com, or GET,HEAD example.com for several"
    )]
    Method,
    /// A method without a host.
    #[error("a method needs a host: POST example.com")]
    MethodAlone,
    /// A colon between methods and host.
    #[error("a space follows the methods: GET,HEAD example.com")]
    ColonBehindMethod,
    /// `allow` or `deny` before the rule of an option or a list.
    #[error(
        "leave the first word out: the option, also with @FILE, is what allows or denies; to deny a host, write --deny HOST before \
         the list"
    )]
    ActionInside,
    /// A method behind the host.
    #[error("the method comes before the host: GET example.com")]
    MethodBehind,
    /// A port behind a space.
    #[error("a port follows the host behind a colon: example.com:8080")]
    SpaceBeforePort,
    /// A URL.
    #[error(
        "a rule has no scheme: write example.com/path; a port tells HTTP from HTTPS, example.com:443"
    )]
    Scheme,
    /// A user name: `git@github.com:org/repo`, `user@host:22`.
    #[error("a rule has no user name: for ssh write github.com:22")]
    User,
    /// Several hosts or ports, separated by commas or a space.
    #[error(
        "a rule has one host and one port at most: write one rule for each, repeating --allow or --deny"
    )]
    Several,
    /// The host is not valid.
    #[error(transparent)]
    Host(#[from] ParseHostPatternError),
    /// The port is not valid.
    #[error(transparent)]
    Port(#[from] ParseHostError),
    /// An IPv6 address followed by a port, without brackets: the port reads as a part of the address.
    #[error("an IPv6 address needs brackets here: write {0}, or brackets around all of it if {port} is a part of the address", port = .0.port())]
    Unbracketed(SocketAddrV6),
    /// Servers may interpret the path in different ways.
    #[error(
        "servers disagree about what this path means; write it without query, fragment, empty segments, `.`, `..`, `;`, \
         backslashes, and escapes of these"
    )]
    Path,
    /// A path with an asterisk would match that character only.
    #[error("a path has no wildcard: write example.com/pub, which includes what is below it")]
    Wildcard,
}
