//! Check services: sound ones, and ones with a fault. The tests of crates/intercept include these files, too.
#![allow(dead_code, reason = "neither of the two test programs uses all of it")]

pub(crate) mod h2;
pub(crate) mod service;

use crate::harness::lab::wait_for;
