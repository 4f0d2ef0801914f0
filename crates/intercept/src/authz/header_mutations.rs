//! Changes of headers that a check service may make, in the request and in the client's response.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Changes of headers in an allowing response. Each was validated: none affects the destination, the framing or the
/// connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeaderMutations {
    request: Vec<HeaderMutation>,
    response: Vec<HeaderMutation>,
    refused: usize,
    /// Whether a change of a mutable request header was refused (an invalid value, or too many), so that the client's own value
    /// would remain.
    is_incomplete: bool,
}

/// The change of one header.
#[derive(Clone, Debug, PartialEq)]
struct HeaderMutation {
    name: HeaderName,
    /// Empty for a removal.
    value: HeaderValue,
    mode: MutationMode,
}

/// How a change treats a header that may exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MutationMode {
    Remove,
    Set,
    Append,
    IfAbsent,
    IfPresent,
}

/// The message that a change is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Request,
    Response,
}

impl HeaderMutations {
    /// Changes the headers of the request to the origin.
    pub fn apply_to_request(&self, headers: &mut HeaderMap) {
        for change in &self.request {
            change.apply(headers);
        }
    }

    /// Changes the headers of the response to the client.
    pub fn apply_to_response(&self, headers: &mut HeaderMap) {
        for change in &self.response {
            change.apply(headers);
        }
    }

    /// How many changes were refused.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// Whether the request must not be sent: a change of its headers has an invalid value, or there are too many changes.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Adds a change, or counts it as refused.
    pub(crate) fn add(
        &mut self,
        message: MessageKind,
        name: &[u8],
        value: &[u8],
        mode: MutationMode,
    ) {
        let name = HeaderName::from_bytes(name).ok().filter(is_mutable);
        let value = HeaderValue::from_bytes(value).ok();
        let changes = match message {
            MessageKind::Request => &mut self.request,
            MessageKind::Response => &mut self.response,
        };
        match (name, value) {
            (Some(name), Some(value)) if changes.len() < MAX_MUTATIONS => {
                changes.push(HeaderMutation { name, value, mode });
            }
            (name, _) => {
                self.refused += 1;
                self.is_incomplete |= name.is_some() && message == MessageKind::Request;
            }
        }
    }

    /// Adds the removal of a request header, or counts it as refused.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.add(MessageKind::Request, name, b"", MutationMode::Remove);
    }

    /// Approximate memory in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.request
            .iter()
            .chain(&self.response)
            .map(HeaderMutation::weight)
            .sum()
    }
}

impl HeaderMutation {
    fn weight(&self) -> usize {
        size_of::<Self>() + self.name.as_str().len() + self.value.len()
    }

    fn apply(&self, headers: &mut HeaderMap) {
        let Self { name, value, mode } = self;
        match mode {
            MutationMode::Remove => remove_cgi_aliases(headers, name),
            MutationMode::IfPresent if !headers.keys().any(|other| is_cgi_alias(other, name)) => {}
            MutationMode::Set | MutationMode::IfPresent => {
                remove_cgi_aliases(headers, name);
                headers.insert(name, value.clone());
            }
            MutationMode::Append => drop(headers.append(name, value.clone())),
            MutationMode::IfAbsent => {
                headers.entry(name).or_insert_with(|| value.clone());
            }
        }
    }
}

/// Whether a header may be changed: headers of the connection (RFC 9110 §7.6.1), the framing and the destination may not, nor their
/// [aliases](is_cgi_alias).
pub(crate) fn is_mutable(name: &HeaderName) -> bool {
    !IMMUTABLE
        .iter()
        .any(|immutable| is_cgi_alias(immutable, name))
}

/// Removes a header and its [aliases](is_cgi_alias). Otherwise a CGI program could read the client's header instead of the one
/// that is set.
pub(super) fn remove_cgi_aliases(headers: &mut HeaderMap, name: &HeaderName) {
    let aliases: Vec<_> = headers
        .keys()
        .filter(|other| is_cgi_alias(other, name))
        .cloned()
        .collect();
    for alias in aliases {
        headers.remove(alias);
    }
}

/// Whether a CGI program gets both headers as one variable, as `X-User`, `X_User` and `X.User`: characters that are no letters
/// or digits become underscores (RFC 3875, section 4.1.18).
pub(super) fn is_cgi_alias(one: &HeaderName, other: &HeaderName) -> bool {
    let (one, other) = (one.as_str().bytes(), other.as_str().bytes());
    one.len() == other.len()
        && one
            .zip(other)
            .all(|(a, b)| a == b || !a.is_ascii_alphanumeric() && !b.is_ascii_alphanumeric())
}

const IMMUTABLE: [HeaderName; 14] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("proxy-authentication-info"),
];

/// The maximum number of changes of one message. A response of bounded size could hold thousands, and the origin has to process
/// each header.
pub(crate) const MAX_MUTATIONS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header_map as headers;

    #[test]
    fn header_is_set_appended_added_if_absent_or_set_if_present() {
        let mut changes = HeaderMutations::default();
        for (name, mode) in [
            (b"A", MutationMode::Set),
            (b"b", MutationMode::Append),
            (b"c", MutationMode::IfAbsent),
            (b"d", MutationMode::IfAbsent),
            (b"e", MutationMode::IfPresent),
            (b"f", MutationMode::IfPresent),
        ] {
            changes.add(MessageKind::Request, name, b"new", mode);
        }
        changes.add(MessageKind::Response, b"g", b"new", MutationMode::Set);
        changes.remove(b"h");
        let mut request = headers(&[
            ("a", "old"),
            ("b", "old"),
            ("c", "old"),
            ("e", "old"),
            ("h", ""),
        ]);
        changes.apply_to_request(&mut request);
        let expected = headers(&[
            ("a", "new"),
            ("b", "old"),
            ("b", "new"),
            ("c", "old"),
            ("d", "new"),
            ("e", "new"),
        ]);
        assert_eq!(request, expected);
        let mut response = HeaderMap::new();
        changes.apply_to_response(&mut response);
        assert_eq!(response, headers(&[("g", "new")]));
        assert_eq!(changes.refused(), 0);
    }

    #[test]
    fn framing_destination_and_connection_can_not_be_changed() {
        let mut changes = HeaderMutations::default();
        let aliases = ["Content_Length", "transfer.encoding"];
        let invalid = ["HOST", ":authority", ":path", "a b", "", "a\r\nb"];
        let immutable = IMMUTABLE;
        let names = immutable.iter().map(HeaderName::as_str);
        for name in names.chain(aliases).chain(invalid) {
            changes.add(
                MessageKind::Request,
                name.as_bytes(),
                b"x",
                MutationMode::Set,
            );
            changes.remove(name.as_bytes());
        }
        let names = IMMUTABLE.len() + aliases.len() + invalid.len();
        assert_eq!(changes.refused(), 2 * names);
        assert!(!changes.is_incomplete());
        let mut untouched = headers(&[("host", "a.test"), ("content-length", "3")]);
        changes.apply_to_request(&mut untouched);
        assert_eq!(
            untouched,
            headers(&[("host", "a.test"), ("content-length", "3")])
        );
    }

    #[test]
    fn changes_beyond_the_maximum_are_refused() {
        let mut changes = HeaderMutations::default();
        for n in 0..1000 {
            changes.add(
                MessageKind::Request,
                format!("x-{n}").as_bytes(),
                b"",
                MutationMode::Set,
            );
        }
        assert_eq!(
            (changes.request.len(), changes.refused()),
            (MAX_MUTATIONS, 1000 - MAX_MUTATIONS)
        );
        assert!(changes.is_incomplete());
    }

    #[test]
    fn change_of_the_request_with_an_invalid_value_makes_it_unsendable() {
        for (message, is_incomplete) in
            [(MessageKind::Request, true), (MessageKind::Response, false)]
        {
            let mut changes = HeaderMutations::default();
            changes.add(message, b"x-user", b"a\r\nhost: other", MutationMode::Set);
            assert_eq!(changes.is_incomplete(), is_incomplete, "{message:?}");
            assert_eq!(changes.refused(), 1);
        }
    }

    #[test]
    fn removing_or_setting_a_header_removes_its_cgi_aliases() {
        let mut changes = HeaderMutations::default();
        changes.remove(b"x-user");
        changes.add(MessageKind::Request, b"x-role", b"none", MutationMode::Set);
        let mode = MutationMode::IfPresent;
        changes.add(MessageKind::Request, b"x-team", b"none", mode);
        let mut request = headers(&[
            ("x_user", "admin"),
            ("x.role", "admin"),
            ("x_team", "admin"),
            ("x-users", "kept"),
        ]);
        changes.apply_to_request(&mut request);
        assert_eq!(
            request,
            headers(&[("x-users", "kept"), ("x-role", "none"), ("x-team", "none")])
        );
    }
}
