//! Services that a check can ask, good ones and broken ones. The tests of crates/intercept have the same.
#![allow(dead_code, reason = "each of the two has a use for most of it")]

pub(crate) mod broken;
pub(crate) mod h2;
pub(crate) mod service;

use crate::harness::lab::wait_for;
