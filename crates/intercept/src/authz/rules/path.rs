//! The path of a request, and the path of a rule.
//!
//! Servers disagree about what `/a/../b`, `//`, `%2e`, `%2f`, `;` and the like mean. A rule that assumed one reading could be
//! bypassed on a server with another. So a path is compared only if all readings are the same, after its harmless escapes are
//! decoded. Any other path is ambiguous: rules that deny match it, and rules that allow don't.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use super::lookalike::is_lookalike;

/// A path prefix of a rule, on the borders of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PathPrefix {
    /// Decoded, without a final slash; empty for `/`, which includes every path.
    path: String,
    lowercase: String,
}

/// The path of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestPath<'a> {
    /// Every server reads the path as this one, which is decoded.
    Plain(Cow<'a, str>),
    /// Servers may read the path in different ways.
    Ambiguous,
}

impl<'a> RequestPath<'a> {
    /// Parses the path of a request's target; empty means `/` (RFC 9110, section 4.2.3).
    pub(super) fn parse(path: &'a str) -> Self {
        let path = if path.is_empty() { ROOT } else { path };
        decode_plain(path).map_or(Self::Ambiguous, Self::Plain)
    }
}

impl PathPrefix {
    /// Parses the path of a rule, from its first slash; `None` if it is ambiguous.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let decoded = decode_plain(path)?;
        let path = decoded.strip_suffix('/').unwrap_or(&decoded).to_owned();
        let lowercase = path.to_lowercase();
        Some(Self { path, lowercase })
    }

    /// Whether every server reads `path` as this path or one below it.
    pub(super) fn covers(&self, path: &RequestPath<'_>) -> bool {
        match path {
            _ if self.path.is_empty() => true,
            RequestPath::Plain(path) => is_below(path, &self.path),
            RequestPath::Ambiguous => false,
        }
    }

    /// Whether some server may read `path` as this path or one below it: some servers ignore case.
    pub(super) fn may_cover(&self, path: &RequestPath<'_>) -> bool {
        match path {
            RequestPath::Plain(path) => is_below(&path.to_lowercase(), &self.lowercase),
            RequestPath::Ambiguous => true,
        }
    }
}

/// Whether a rule with this path of a request can be suggested: the rule matches the request, and needs no quotes in a shell.
pub(super) fn is_advisable(path: &str) -> bool {
    let is_literal = |c: char| c.is_ascii_alphanumeric() || "/-._~@%+".contains(c);
    path.chars().all(is_literal) && decode_plain(path).is_some()
}

/// The root. As the path of a rule it covers every path.
pub(super) const ROOT: &str = "/";

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Decodes a path that has one reading.
fn decode_plain(path: &str) -> Option<Cow<'_, str>> {
    let relative = path.strip_prefix('/')?;
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    // A path with escapes after decoding is another path for a server that decodes twice.
    if !are_escapes_valid(path) || has_escape(&decoded) {
        return None;
    }
    // Split before decoding: an escaped slash is inside a segment.
    let segments = relative.strip_suffix('/').unwrap_or(relative);
    let is_root = relative.is_empty();
    let is_plain = is_root
        || segments.split('/').all(|segment| {
            percent_decode_str(segment)
                .decode_utf8()
                .is_ok_and(|segment| is_plain_segment(&segment))
        });
    is_plain.then_some(decoded)
}

/// Whether no server reads this decoded segment as something else: as `.` or `..`, as several segments, as one with parameters
/// (`;`), or as the end of the path. Windows drops dots and spaces at the end of a name, and the stream that each file or
/// directory has by default (`::$DATA`, `:$I30:$INDEX_ALLOCATION`).
fn is_plain_segment(segment: &str) -> bool {
    let is_special = |c: char| c.is_control() || "/\\;?#".contains(c) || is_lookalike(c);
    !segment.is_empty()
        && !segment.ends_with(['.', ' '])
        && !segment.contains(":$")
        && !segment.chars().any(is_special)
}

/// Whether each `%` is followed by two hexadecimal digits.
fn are_escapes_valid(path: &str) -> bool {
    path.split('%').skip(1).all(starts_with_hex_digits)
}

/// Whether an escape is left after decoding.
fn has_escape(decoded: &str) -> bool {
    decoded.split('%').skip(1).any(starts_with_hex_digits)
}

fn starts_with_hex_digits(text: &str) -> bool {
    text.as_bytes()
        .get(..2)
        .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_at_the_border_of_a_segment() {
        let covers = |prefix: &str, path: &str| {
            let prefix = PathPrefix::parse(prefix).unwrap();
            prefix.covers(&RequestPath::parse(path))
        };
        for path in ["/a", "/a/", "/a/b", "/%61", "/a/%7Eb", "/a/100%25"] {
            assert!(covers("/a", path) && covers("/a/", path), "{path}");
            assert!(covers("/%61", path), "{path}");
            assert!(covers("/", path), "{path}");
        }
        for path in ["/ab", "/", "", "/b/a", "/A", "/a.", "*"] {
            assert!(!covers("/a", path), "{path}");
        }
        assert!(covers("/", "*") && covers("/", "") && covers("/", "/a//b"));
        assert!(covers("/\u{e4}", "/%c3%a4/b"));
    }

    #[test]
    fn ambiguous_path_matches_rules_that_deny_and_none_that_allows() {
        let prefix = PathPrefix::parse("/admin").unwrap();
        for path in [
            "/x/../admin",
            "/admin/..",
            "/admin/.",
            "/./admin",
            "//admin",
            "/admin//x",
            "/%2e%2e/admin",
            "/x/.%2E/admin",
            "/x%2fadmin",
            "/admin%5cx",
            "/admin\\x",
            "/admin;v=1",
            "/admin/x;/..",
            "/x/..;/admin",
            "/admin%3bx",
            "/admin%3fx",
            "/admin%23x",
            "/admin%00",
            "/admin%0a",
            "/admin.",
            "/admin%20",
            "/%2561dmin",
            "/%25%36%31dmin",
            "/%zz",
            "/%u0061dmin",
            "/admin%",
            "/%c0%aeadmin",
            "/%ff",
            "/\u{ff41}dmin",
            "/admin%e2%88%95x",
            "/x/%EF%B8%B0/admin",
            "/%E2%93%90dmin",
            "/a\u{1d41d}min",
            "/adm\u{131}n",
            "/ad\u{200b}min",
            "/admin\u{a0}",
            "/admin\u{2100}x",
            "/admin::$DATA",
            "/admin%3A%3A%24data",
            "/admin:$I30:$INDEX_ALLOCATION/x",
            "*",
            "admin",
        ] {
            let parsed = RequestPath::parse(path);
            assert!(!prefix.covers(&parsed), "{path}");
            assert!(prefix.may_cover(&parsed), "{path}");
            assert!(PathPrefix::parse(path).is_none(), "{path}");
        }
        assert!(prefix.may_cover(&RequestPath::parse("/ADMIN/x")));
        for other in [
            "/",
            "/x/admin",
            "/administrator",
            "/x/.well-known/a.b",
            "/v1/admin:get",
            "/arn:aws:s3:::admin",
            "/$admin",
            "/stra\u{df}e \u{2013} \u{e9}\u{3042}\u{4e2d}\u{43a}\u{1f600}",
        ] {
            assert!(!prefix.may_cover(&RequestPath::parse(other)), "{other}");
        }
    }
}
