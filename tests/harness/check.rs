//! Check services: sound ones, and ones with a fault. The tests of crates/intercept use them, too.
#![allow(dead_code, reason = "each of the two has a use for most of it")]

pub(crate) mod broken;
pub(crate) mod h2;
pub(crate) mod service;

use crate::harness::lab::wait_for;
