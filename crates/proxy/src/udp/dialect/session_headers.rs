//! The headers of one session.

use serde::{Deserialize, Serialize};

/// The headers that are prepended to requests and replies of one session, and whether the backend's replies must have one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct SessionHeaders {
    /// The header in front of requests.
    #[serde(with = "base64")]
    pub(crate) request: Box<[u8]>,
    /// Whether only the first request has the header.
    pub(crate) first_only: bool,
    /// The header in front of replies.
    #[serde(with = "base64")]
    pub(crate) reply: Box<[u8]>,
    /// Whether a reply must begin with the header of its request, which is then checked and removed (spp).
    pub(crate) expected_on_replies: bool,
}

/// A header as it is handed over to another process.
mod base64 {
    use data_encoding::BASE64_NOPAD;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        header: &[u8],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_NOPAD.encode(header))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Box<[u8]>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let header = BASE64_NOPAD.decode(text.as_bytes());
        header.map(Vec::into_boxed_slice).map_err(D::Error::custom)
    }
}
