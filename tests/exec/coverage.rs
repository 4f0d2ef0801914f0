//! Coverage: processes of the program that can lose the library. They must not accept a connection without a header, either.

mod environment;
mod masters;
mod propagation;
pub(super) mod starters;
