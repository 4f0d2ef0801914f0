//! The methods of a rule.

/// The methods that a rule is for, as `GET,HEAD` names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Methods(Vec<&'static str>);

impl Methods {
    /// Parses names that are separated by commas, in any case; `None` if one of them is not a known method.
    pub(super) fn parse(text: &str) -> Option<Self> {
        text.split(',')
            .map(|name| {
                METHODS
                    .into_iter()
                    .find(|method| method.eq_ignore_ascii_case(name))
            })
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Whether a rule can name the method.
    pub(super) fn is_known(method: &str) -> bool {
        METHODS.contains(&method)
    }

    /// Whether this method is one of them. Methods are case-sensitive (RFC 9110, section 9.1).
    pub(super) fn include(&self, method: &str) -> bool {
        self.0.contains(&method)
    }

    /// Whether a server may take this method for one of them: some servers ignore case.
    pub(super) fn may_include(&self, method: &str) -> bool {
        self.0.iter().any(|name| name.eq_ignore_ascii_case(method))
    }
}

/// IANA's registry of methods without CONNECT and PRI, which are no requests to an origin; and PURGE, for caches. The list is
/// closed, so that a misspelt method is an error instead of a rule that never matches.
const METHODS: [&str; 39] = [
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
    "PURGE",
];
