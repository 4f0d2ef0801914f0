//! A value with the text that it was parsed from.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::text_value;

/// A value with its text, which is how the effective configuration shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsWritten<T> {
    /// The value.
    pub value: T,
    text: String,
}

impl<T: FromStr<Err: Display>> FromStr for AsWritten<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text.parse().map_err(|error| format!("{error}"))?;
        let text = text.to_owned();
        Ok(Self { value, text })
    }
}

impl<T> Display for AsWritten<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The values of a list.
pub fn values<T: Clone>(all: &[AsWritten<T>]) -> Vec<T> {
    all.iter().map(|one| one.value.clone()).collect()
}

text_value! {
    [T: FromStr<Err: Display>] AsWritten<T>, "Text": { "type": "string" };
}
