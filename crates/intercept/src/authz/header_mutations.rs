//! What a service may do to a request's headers, and to what the client is told.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// Changes of headers that came with a yes. Each was looked at: none touches where the request goes, how it is
/// framed, or the connection it travels on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    request: Vec<Change>,
    response: Vec<Change>,
    refused: usize,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    name: HeaderName,
    how: How,
}

#[derive(Clone, Debug, PartialEq)]
enum How {
    Remove,
    Set(HeaderValue),
    Append(HeaderValue),
    SetIfAbsent(HeaderValue),
    SetIfPresent(HeaderValue),
}

/// What to do about a header that may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Set,
    Append,
    IfAbsent,
    IfPresent,
}

/// Whose headers are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Request,
    Response,
}

impl Changes {
    /// Changes the headers that the origin will see.
    pub fn apply_to_request(&self, headers: &mut HeaderMap) {
        self.request.iter().for_each(|change| change.apply(headers));
    }

    /// Changes the headers that the client will see.
    pub fn apply_to_response(&self, headers: &mut HeaderMap) {
        let changes = self.response.iter();
        changes.for_each(|change| change.apply(headers));
    }

    /// How many the service asked for that it may not have.
    pub fn refused(&self) -> usize {
        self.refused
    }

    /// Takes one on, if it may be.
    pub(crate) fn put(&mut self, of: Of, name: &[u8], value: &[u8], mode: Mode) {
        let value = HeaderValue::from_bytes(value).ok();
        self.add(of, name, value.map(|value| How::of(mode, value)));
    }

    /// Takes a removal from the request on, if it may be.
    pub(crate) fn remove(&mut self, name: &[u8]) {
        self.add(Of::Request, name, Some(How::Remove));
    }

    fn add(&mut self, of: Of, name: &[u8], how: Option<How>) {
        let name = HeaderName::from_bytes(name).ok().filter(is_free);
        let changes = match of {
            Of::Request => &mut self.request,
            Of::Response => &mut self.response,
        };
        match (name, how) {
            (Some(name), Some(how)) if changes.len() < MOST => changes.push(Change { name, how }),
            _ => self.refused += 1,
        }
    }

    /// About how much memory they take.
    pub(crate) fn weight(&self) -> usize {
        let changes = self.request.iter().chain(&self.response);
        let text = changes.map(|change| change.name.as_str().len() + change.how.weight());
        text.sum::<usize>() + (self.request.len() + self.response.len()) * size_of::<Change>()
    }
}

impl Change {
    fn apply(&self, headers: &mut HeaderMap) {
        let name = self.name.clone();
        match &self.how {
            How::Remove => drop(headers.remove(name)),
            How::Set(value) => drop(headers.insert(name, value.clone())),
            How::Append(value) => drop(headers.append(name, value.clone())),
            How::SetIfAbsent(value) => drop(headers.entry(name).or_insert_with(|| value.clone())),
            How::SetIfPresent(value) if headers.contains_key(&name) => {
                headers.insert(name, value.clone());
            }
            How::SetIfPresent(_) => {}
        }
    }
}

impl How {
    fn of(mode: Mode, value: HeaderValue) -> Self {
        match mode {
            Mode::Set => Self::Set(value),
            Mode::Append => Self::Append(value),
            Mode::IfAbsent => Self::SetIfAbsent(value),
            Mode::IfPresent => Self::SetIfPresent(value),
        }
    }

    fn weight(&self) -> usize {
        match self {
            Self::Remove => 0,
            Self::Set(value)
            | Self::Append(value)
            | Self::SetIfAbsent(value)
            | Self::SetIfPresent(value) => value.len(),
        }
    }
}

/// Whether a header is the message's own: not the connection's (RFC 9110 §7.6.1), nor its framing, nor where it
/// goes to.
pub(crate) fn is_free(name: &HeaderName) -> bool {
    !NOT_FREE.contains(name) && !["keep-alive", "proxy-connection"].contains(&name.as_str())
}

const NOT_FREE: [HeaderName; 12] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::HeaderName::from_static("http2-settings"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::HeaderName::from_static("proxy-authentication-info"),
];

/// Changes of one message. An answer of bounded size could still hold thousands, each of which is a header that
/// the origin has to take.
pub(crate) const MOST: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn each_mode_does_what_it_says() {
        let mut changes = Changes::default();
        changes.put(Of::Request, b"A", b"new", Mode::Set);
        changes.put(Of::Request, b"b", b"new", Mode::Append);
        changes.put(Of::Request, b"c", b"new", Mode::IfAbsent);
        changes.put(Of::Request, b"d", b"new", Mode::IfAbsent);
        changes.put(Of::Request, b"e", b"new", Mode::IfPresent);
        changes.put(Of::Request, b"f", b"new", Mode::IfPresent);
        changes.put(Of::Response, b"g", b"new", Mode::Set);
        changes.remove(b"h");
        let mut request = headers(&[
            ("a", "old"),
            ("b", "old"),
            ("c", "old"),
            ("e", "old"),
            ("h", ""),
        ]);
        changes.apply_to_request(&mut request);
        let expected = [
            ("a", "new"),
            ("b", "old"),
            ("b", "new"),
            ("c", "old"),
            ("d", "new"),
            ("e", "new"),
        ];
        assert_eq!(
            request,
            expected
                .iter()
                .fold(HeaderMap::new(), |mut all, (name, value)| {
                    all.append(*name, HeaderValue::from_static(value));
                    all
                })
        );
        let mut response = HeaderMap::new();
        changes.apply_to_response(&mut response);
        assert_eq!(response, headers(&[("g", "new")]));
        assert_eq!(changes.refused(), 0);
    }

    #[test]
    fn framing_destination_and_connection_stay() {
        let mut changes = Changes::default();
        for name in [
            "Host",
            "host",
            ":authority",
            ":path",
            "Content-Length",
            "Transfer-Encoding",
            "Connection",
            "TE",
            "Upgrade",
            "Keep-Alive",
            "Proxy-Connection",
            "Trailer",
            "a b",
            "",
            "a\r\nb",
        ] {
            changes.put(Of::Request, name.as_bytes(), b"x", Mode::Set);
            changes.remove(name.as_bytes());
        }
        changes.put(Of::Request, b"x-split", b"a\r\nhost: other", Mode::Set);
        assert_eq!(changes.refused(), 31);
        let mut untouched = headers(&[("host", "a.test"), ("content-length", "3")]);
        changes.apply_to_request(&mut untouched);
        assert_eq!(
            untouched,
            headers(&[("host", "a.test"), ("content-length", "3")])
        );
    }

    #[test]
    fn there_is_a_most_of_them() {
        let mut changes = Changes::default();
        for n in 0..1000 {
            changes.put(Of::Request, format!("x-{n}").as_bytes(), b"", Mode::Set);
        }
        assert_eq!(
            (changes.request.len(), changes.refused()),
            (MOST, 1000 - MOST)
        );
    }
}
