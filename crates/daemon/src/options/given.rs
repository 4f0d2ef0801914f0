//! Options with the words that gave them.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use serde_json::{Map, Value, json};

use crate::usage::secrets::mask_value;

/// Options in three forms: parsed, as the words that gave them, and as the JSON that `/config` shows.
#[derive(Clone, Debug)]
pub struct Given<T> {
    /// The options.
    pub options: T,
    pub(super) words: Vec<Word>,
    json: Map<String, Value>,
}

/// Options of a file and a command line.
#[derive(Debug)]
pub struct Merged<T> {
    /// The options in force.
    pub given: Given<T>,
    /// The names of the options of the file that have no effect, because an option of the command line excludes them.
    pub excluded: BTreeSet<String>,
    /// The names of the options of the command line that exclude them.
    pub excluding: BTreeSet<String>,
}

/// A word of a command line, and the id of the option that it gives.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) option: String,
    pub(super) text: OsString,
}

impl<T: clap::Args> Given<T> {
    /// Parses words as a command line.
    pub(super) fn parse(words: Vec<Word>) -> Result<Self, clap::Error> {
        let texts = words.iter().map(|word| &word.text);
        let matches = command::<T>().try_get_matches_from(texts)?;
        let given = Self::from_arg_matches(&matches)?;
        Ok(Self { words, ..given })
    }

    /// Merges the options of a file with those of the command line. An option of the command line replaces the same option of
    /// the file, and excludes those that it conflicts with. If its id is in `added`, its values follow those of the file
    /// instead.
    pub fn with_command_line<U: clap::Args>(
        self,
        line: &Given<U>,
        added: &[&str],
    ) -> Result<Merged<T>, clap::Error> {
        let command = command::<T>();
        let (excluded, mut words): (Vec<_>, Vec<_>) = self.words.into_iter().partition(|word| {
            line.words
                .iter()
                .any(|given| conflicts(&command, &given.option, &word.option))
        });
        words.retain(|word| {
            added.contains(&word.option.as_str()) || line.words_of(&word.option).next().is_none()
        });
        words.extend(line.words.iter().cloned());
        let excluding = line.words.iter().filter(|given| {
            excluded
                .iter()
                .any(|word| conflicts(&command, &given.option, &word.option))
        });
        Ok(Merged {
            given: Self::parse(words)?,
            excluded: excluded
                .iter()
                .filter_map(|word| long_name(&command, word))
                .collect(),
            excluding: excluding
                .filter_map(|word| long_name(&command, word))
                .collect(),
        })
    }

    /// Sets the shown value of an option that was not given, and whose default depends on more than the options.
    pub fn show_default(&mut self, key: &str, value: impl Into<Value>) {
        let is_given = self.json.get(key).is_some_and(|shown| *shown != json!([]));
        if !is_given {
            self.json.insert(key.to_owned(), value.into());
        }
    }

    /// The words that gave an option, by its id.
    pub fn words_of<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a OsString> {
        self.words
            .iter()
            .filter_map(move |word| (word.option == option).then_some(&word.text))
    }

    /// The words that gave other options than these, by their ids.
    pub fn words_except<'a>(&'a self, options: &'a [&str]) -> impl Iterator<Item = &'a OsString> {
        self.words
            .iter()
            .filter(|word| !options.contains(&word.option.as_str()))
            .map(|word| &word.text)
    }

    /// The options as JSON, by their names, defaults included.
    pub fn as_json(&self) -> &Map<String, Value> {
        &self.json
    }
}

impl<T: clap::Args> Default for Given<T> {
    /// The defaults.
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "no option is required")]
        Self::parse(Vec::new()).expect("every option has a default")
    }
}

/// The name of the option that a word gives.
fn long_name(command: &Command, word: &Word) -> Option<String> {
    let arg = command
        .get_arguments()
        .find(|arg| arg.get_id() == word.option.as_str())?;
    arg.get_long().map(str::to_owned)
}

/// Returns a command with these options and nothing else: the first word that it parses is an option.
pub(super) fn command<T: clap::Args>() -> Command {
    let command = Command::new("peername")
        .no_binary_name(true)
        .disable_help_flag(true)
        .disable_version_flag(true);
    let mut command = T::augment_args(command);
    // `get_arg_conflicts_with` needs a built command.
    command.build();
    command
}

/// Whether one option can't be given with the other.
pub(super) fn conflicts(command: &Command, one: &str, other: &str) -> bool {
    let find = |id: &str| command.get_arguments().find(|arg| arg.get_id() == id);
    let excludes = |one: &Arg, other: &Arg| {
        let mut excluded = command.get_arg_conflicts_with(one).into_iter();
        excluded.any(|arg| arg.get_id() == other.get_id())
    };
    match (find(one), find(other)) {
        (Some(one), Some(other)) => excludes(one, other) || excludes(other, one),
        _ => false,
    }
}

impl<T: clap::Args> clap::Args for Given<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: clap::Args> FromArgMatches for Given<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let command = command::<T>();
        let options = || {
            command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some())
        };
        Ok(Self {
            options: T::from_arg_matches(matches)?,
            words: ordered_words(options(), matches),
            json: options()
                .filter(|arg| !arg.is_hide_set())
                .filter_map(|arg| Some((arg.get_long()?.to_owned(), show(arg, matches)?)))
                .collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns the words of a command line in their order, which matters for rules: the first match decides.
fn ordered_words<'a>(args: impl Iterator<Item = &'a Arg>, matches: &ArgMatches) -> Vec<Word> {
    let mut words: Vec<_> = args.flat_map(|arg| indexed_words(arg, matches)).collect();
    words.sort_by_key(|(index, _)| *index);
    words.into_iter().map(|(_, word)| word).collect()
}

/// Returns the words that give an option, each with its index. Flags have index 0, because their order does not matter.
fn indexed_words(arg: &Arg, matches: &ArgMatches) -> Vec<(usize, Word)> {
    let id = arg.get_id().as_str();
    if matches.value_source(id) != Some(ValueSource::CommandLine) {
        return Vec::new();
    }
    let word = |value: Option<OsString>| Word {
        option: id.to_owned(),
        text: option_word(arg, value),
    };
    match arg.get_action() {
        ArgAction::SetTrue => vec![(0, word(None))],
        ArgAction::Count => vec![(0, word(None)); usize::from(matches.get_count(id))],
        _ => {
            let values = matches.get_raw(id).into_iter().flatten();
            let indices = matches.indices_of(id).into_iter().flatten();
            indices
                .zip(values.map(|value| word(Some(value.to_owned()))))
                .collect()
        }
    }
}

/// Returns `--option`, or `--option=value`.
pub(super) fn option_word(arg: &Arg, value: Option<OsString>) -> OsString {
    let mut word = OsString::from("--");
    word.push(arg.get_long().unwrap_or_default());
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// The value of an option as JSON.
fn show(arg: &Arg, matches: &ArgMatches) -> Option<Value> {
    let id = arg.get_id().as_str();
    let mut values = matches.get_raw(id).into_iter().flatten();
    match arg.get_action() {
        ArgAction::SetTrue => Some(matches.get_flag(id).into()),
        ArgAction::Count => Some(matches.get_count(id).into()),
        ArgAction::Append => Some(values.map(show_value).collect()),
        _ => values.next().map(show_value),
    }
}

/// A number, or a text without the password of a URL.
fn show_value(value: &OsStr) -> Value {
    let text = value.to_string_lossy();
    match text.parse::<u64>() {
        Ok(number) => number.into(),
        Err(_) => mask_value("", &text).into(),
    }
}

/// For [`Command::mut_args`]: has the options of `T` conflict with `--config`, beside which it would not be clear which table they
/// belong to.
pub fn not_with_file<T: clap::Args>() -> impl Fn(Arg) -> Arg {
    let options = T::augment_args(Command::new("options"));
    move |arg| {
        if options
            .get_arguments()
            .any(|own| own.get_id() == arg.get_id())
        {
            arg.conflicts_with("config")
        } else {
            arg
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, clap::Args)]
    struct Options {
        #[arg(long, default_value = "5s")]
        drain: String,
        #[arg(long)]
        trust: Vec<String>,
        #[arg(short, long, action = ArgAction::Count)]
        verbose: u8,
        #[arg(long, conflicts_with = "verbose")]
        quiet: bool,
        #[arg(long)]
        proxy: Option<String>,
    }

    fn given(words: &[&str]) -> Given<Options> {
        let matches = command::<Options>().try_get_matches_from(words).unwrap();
        Given::from_arg_matches(&matches).unwrap()
    }

    #[test]
    fn command_line_replaces_the_file_and_what_conflicts_with_it() {
        let file = given(&["--drain=1s", "--trust=a", "--trust=b", "-vv"]);
        let merged = |line: &[&str], added: &[&str]| {
            let merged = file.clone().with_command_line(&given(line), added);
            merged.unwrap()
        };
        let merged_options = |line: &[&str]| merged(line, &[]).given.options;
        assert_eq!(merged_options(&[]).drain, "1s");
        assert_eq!(merged_options(&["--drain=2s"]).drain, "2s");
        assert_eq!(merged_options(&["--drain=2s"]).trust, ["a", "b"]);
        assert_eq!(merged_options(&["--trust=c"]).trust, ["c"]);
        assert_eq!(merged_options(&["-v"]).verbose, 1);
        let quiet = merged_options(&["--quiet"]);
        assert!(quiet.quiet && quiet.verbose == 0);
        let added = merged(&["--trust=c", "--quiet"], &["trust"]);
        assert_eq!(added.given.options.trust, ["a", "b", "c"]);
        assert_eq!(added.excluded, ["verbose".to_owned()].into());
    }

    #[test]
    fn words_are_in_the_order_of_the_command_line() {
        let line = ["--trust=a", "--drain=1s", "--trust=b", "--quiet"];
        let words = given(&line).words;
        let texts: Vec<_> = words.iter().filter_map(|word| word.text.to_str()).collect();
        assert_eq!(texts, ["--quiet", "--trust=a", "--drain=1s", "--trust=b"]);
    }

    #[test]
    fn options_are_shown_with_defaults_and_without_passwords() {
        let options = given(&["--proxy=http://user:secret@proxy.test:1", "--trust=7"]);
        let expected = serde_json::json!({
            "drain": "5s", "trust": [7], "verbose": 0, "quiet": false, "proxy": "http://***@proxy.test:1"
        });
        assert_eq!(Value::from(options.as_json().clone()), expected);
    }
}
