//! A media type of an option (`--check-body-exempt`).

use std::str::FromStr;

use http::{HeaderMap, header};

/// A media type without parameters, such as `application/grpc`, with those of its suffixes (`application/grpc+proto`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaType(String);

/// Not `TYPE/SUBTYPE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use a media type: application/grpc")]
pub struct ParseMediaTypeError;

impl FromStr for MediaType {
    type Err = ParseMediaTypeError;

    fn from_str(text: &str) -> Result<Self, ParseMediaTypeError> {
        let is_token = |part: &str| {
            let is_of_token =
                |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
            !part.is_empty() && part.bytes().all(is_of_token)
        };
        match text.split_once('/') {
            Some((kind, subtype)) if is_token(kind) && is_token(subtype) => {
                Ok(Self(text.to_ascii_lowercase()))
            }
            _ => Err(ParseMediaTypeError),
        }
    }
}

impl MediaType {
    /// Whether the body of a message with these headers has this type. One with two types has none.
    pub(crate) fn is_of(&self, headers: &HeaderMap) -> bool {
        let mut types = headers.get_all(header::CONTENT_TYPE).iter();
        let (Some(kind), None) = (types.next(), types.next()) else {
            return false;
        };
        let kind = kind.to_str().unwrap_or_default().to_ascii_lowercase();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let suffix = kind.strip_prefix(&*self.0);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('+'))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn type_covers_its_suffixes() {
        let exempt: MediaType = "application/Grpc".parse().unwrap();
        let of = |kind: &'static str| {
            let kind = HeaderValue::from_static(kind);
            exempt.is_of(&HeaderMap::from_iter([(header::CONTENT_TYPE, kind)]))
        };
        assert!(of("application/grpc") && of("Application/gRPC+proto; x=y"));
        assert!(!of("application/grpc-web") && !of("text/plain") && !of(""));
        for wrong in ["", "application", "application/", "a/b;c", "a/b/c", "*/*"] {
            assert!(wrong.parse::<MediaType>().is_err(), "{wrong}");
        }
    }
}
