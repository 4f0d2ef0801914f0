//! The method that relays a connection at the moment, and its name in metrics.

/// The method that moves the bytes of a connection at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActiveMethod {
    /// read(2) and write(2).
    Copy,
    /// splice(2), in one direction at least.
    Splice,
}

impl ActiveMethod {
    /// Every method, each at the index that is its discriminant.
    pub const ALL: [Self; 2] = [Self::Copy, Self::Splice];

    /// The name in metrics and listings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Splice => "splice",
        }
    }
}
