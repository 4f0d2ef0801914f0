//! Services that a check can ask, good ones and broken ones. The tests of crates/intercept have the same.

// Each of the two has a use for most of it.
#[allow(dead_code)]
pub(crate) mod broken;
#[allow(dead_code)]
pub(crate) mod h2;
#[allow(dead_code)]
pub(crate) mod service;

use crate::lab::wait_for;
