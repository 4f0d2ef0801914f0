//! Forms of a header that are unambiguous, but not as the specification has them.

use core::fmt::{self, Display, Formatter};

/// What a header has that the specification does not allow, or that no client has, although its meaning is clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// The addresses of a version 1 line are not those of its keyword: of both families, or of the other one.
    Families {
        /// Whether the keyword is TCP6.
        keyword_v6: bool,
        /// Whether the source is IPv6.
        source_v6: bool,
        /// Whether the destination is IPv6.
        destination_v6: bool,
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
                keyword_v6,
                source_v6,
                destination_v6,
            } => {
                let keyword = if keyword_v6 { "TCP6" } else { "TCP4" };
                let (source, destination) = (family(source_v6), family(destination_v6));
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
