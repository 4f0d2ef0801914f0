//! The media type in an option (`--check-body-exempt`).

use std::str::FromStr;

use http::{HeaderMap, header};

/// A media type without parameters, such as `application/grpc`. It includes those with a suffix (`application/grpc+proto`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaType(String);

/// Not `TYPE/SUBTYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a media type: application/grpc")]
pub struct ParseMediaTypeError;

impl FromStr for MediaType {
    type Err = ParseMediaTypeError;

    fn from_str(text: &str) -> Result<Self, ParseMediaTypeError> {
        match text.split_once('/') {
            Some((top_level, subtype))
                if is_restricted_name(top_level) && is_restricted_name(subtype) =>
            {
                Ok(Self(text.to_ascii_lowercase()))
            }
            _ => Err(ParseMediaTypeError),
        }
    }
}

impl MediaType {
    /// Whether a message with these headers has a body of this type. No type matches if the headers name several.
    pub(crate) fn matches(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(header::CONTENT_TYPE).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let value = value.to_str().unwrap_or_default().to_ascii_lowercase();
        if value.contains(',') {
            return false;
        }
        let media_type = value.split(';').next().unwrap_or_default().trim();
        media_type
            .strip_prefix(&*self.0)
            .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('+'))
    }
}

/// The characters of a restricted-name (RFC 6838, section 4.2).
fn is_restricted_name(part: &str) -> bool {
    !part.is_empty()
        && part
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn type_matches_its_suffixes_and_no_list_of_types() {
        let exempt: MediaType = "application/Grpc".parse().unwrap();
        for (content_type, is_exempt) in [
            ("application/grpc", true),
            ("Application/gRPC+proto; x=y", true),
            ("application/grpc-web", false),
            ("application/grpc+proto, text/html", false),
            ("application/grpc;x=y, text/html", false),
            ("text/plain", false),
            ("", false),
        ] {
            let value = HeaderValue::from_static(content_type);
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value)]);
            assert_eq!(exempt.matches(&headers), is_exempt, "{content_type}");
        }
        for wrong in ["", "application", "application/", "a/b;c", "a/b/c", "*/*"] {
            assert!(wrong.parse::<MediaType>().is_err(), "{wrong}");
        }
    }
}
