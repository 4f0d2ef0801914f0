//! Deviations of a header from the specification that leave its meaning clear.

use core::fmt::{self, Display, Formatter};

/// A deviation from the specification, or a value that no client has. The meaning of the header is clear all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// One or both addresses of a version 1 line are not of the family that its keyword names.
    Families {
        /// Whether the keyword is TCP6.
        is_keyword_v6: bool,
        /// Whether the source is IPv6.
        is_source_v6: bool,
        /// Whether the destination is IPv6.
        is_destination_v6: bool,
    },
    /// A version 1 line has a space before its CRLF.
    TrailingSpace,
    /// The source port is 0.
    SourcePortZero,
}

impl Display for Deviation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let family = |is_v6| if is_v6 { "IPv6" } else { "IPv4" };
        match *self {
            Self::Families {
                is_keyword_v6,
                is_source_v6,
                is_destination_v6,
            } => {
                let keyword = if is_keyword_v6 { "TCP6" } else { "TCP4" };
                let (source, destination) = (family(is_source_v6), family(is_destination_v6));
                write!(
                    f,
                    "source is {source}, destination {destination} in a {keyword} header"
                )
            }
            Self::TrailingSpace => f.write_str("a space before the CRLF of a version 1 line"),
            Self::SourcePortZero => f.write_str("source port 0"),
        }
    }
}
