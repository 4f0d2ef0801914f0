//! Coverage: processes of the program that could lose the library, and still must not accept without a header.

mod environment;
mod masters;
mod propagation;
pub(super) mod starters;
