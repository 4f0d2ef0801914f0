//! Services for a check to ask, sound ones and broken ones. The tests of crates/intercept use the same.
#![allow(dead_code, reason = "each of the two has a use for most of it")]

pub(crate) mod broken;
pub(crate) mod h2;
pub(crate) mod service;

use crate::harness::lab::wait_for;
