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
        if kind.contains(',') {
            return false;
        }
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let suffix = kind.strip_prefix(&*self.0);
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('+'))
    }
}

fn is_token(part: &str) -> bool {
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
    fn type_covers_its_suffixes() {
        let exempt: MediaType = "application/Grpc".parse().unwrap();
        for (kind, is_exempt) in [
            ("application/grpc", true),
            ("Application/gRPC+proto; x=y", true),
            ("application/grpc-web", false),
            ("application/grpc+proto, text/html", false),
            ("application/grpc;x=y, text/html", false),
            ("text/plain", false),
            ("", false),
        ] {
            let headers = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
            assert_eq!(
                exempt.is_of(&HeaderMap::from_iter(headers)),
                is_exempt,
                "{kind}"
            );
        }
        for wrong in ["", "application", "application/", "a/b;c", "a/b/c", "*/*"] {
            assert!(wrong.parse::<MediaType>().is_err(), "{wrong}");
        }
    }
}
