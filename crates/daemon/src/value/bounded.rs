//! Durations, numbers and other quantities with bounds.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use super::parse;

/// A duration, as [`parse::duration`] parses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

/// A duration of at least 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout(pub Duration);

/// A firewall mark: `123`, `0x7b`; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub u32);

/// A number of at least `LOW` and at most `HIGH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const LOW: u64, const HIGH: u64>(u64);

/// The type of a TLV, by name or number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlvKind(pub u8);

impl<const LOW: u64, const HIGH: u64> Number<LOW, HIGH> {
    /// The number within the bounds that is nearest to `value`.
    pub fn clamp(value: usize) -> Self {
        Self((value as u64).clamp(LOW, HIGH))
    }

    /// The number as a count of objects in memory.
    pub fn get(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse::duration(text).map(Self)
    }
}

impl FromStr for Timeout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse::timeout(text).map(Self)
    }
}

impl FromStr for Mark {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse::mark(text).map(Self)
    }
}

impl FromStr for TlvKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse::tlv_kind(text).map(Self)
    }
}

impl<const LOW: u64, const HIGH: u64> FromStr for Number<LOW, HIGH> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) if (LOW..=HIGH).contains(&number) => Ok(Self(number)),
            _ if HIGH >= MAX_INTEGER => Err(format!("use a number of at least {LOW}")),
            _ => Err(format!("use a number from {LOW} to {HIGH}")),
        }
    }
}

impl Display for Time {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Display for Timeout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Display for Mark {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Display for TlvKind {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const LOW: u64, const HIGH: u64> Display for Number<LOW, HIGH> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The largest integer of TOML. As a bound it means that there is none.
pub const MAX_INTEGER: u64 = i64::MAX as u64;
