//! The keys of a table, and those that could not be read.

use clap::Arg;

use crate::options::given::Word;
use crate::options::origin::{Mistake, split_name};

/// A key of a table, its option, and the words that give the option.
pub(super) struct Entry<'c> {
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) arg: &'c Arg,
    pub(super) words: Vec<Word>,
}

impl Entry<'_> {
    pub(super) fn mistake(&self, why: String) -> Mistake {
        Mistake {
            at: self.at,
            key: Some(self.key.clone()),
            why,
        }
    }
}

/// The options that are not read: those whose key is invalid, and, if there is an unknown key, all that are missing, since it may be
/// one of them misspelt.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(pub(super) Vec<String>);

impl Unread {
    pub(super) fn contains(&self, option: &str) -> bool {
        self.0.iter().any(|unread| unread == option)
    }

    pub(super) fn contains_any(&self, options: &[String]) -> bool {
        options.iter().any(|option| self.contains(option))
    }

    /// Whether an error names an option that could not be read, and so may follow from that.
    pub(super) fn explains(&self, error: &str) -> bool {
        error
            .split("--")
            .skip(1)
            .any(|rest| self.contains(split_name(rest).0))
    }
}

/// The name of an option.
pub(super) fn option(arg: &Arg) -> String {
    arg.get_long().unwrap_or_default().to_owned()
}
