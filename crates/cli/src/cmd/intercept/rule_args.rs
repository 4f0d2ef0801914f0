//! `--allow` and `--deny`: one list, in the order of the command line. In the configuration file the list is one key, `rules`,
//! because the keys of a table have no order.

use std::path::{Path, PathBuf, absolute};

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use peername_daemon::usage::UsageError;
use peername_daemon::value::list_file;
use peername_intercept::authz::{AccessRules, ParseRuleError, Rule};

use super::rule_file;

/// The access lists.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleArgs {
    rules: Vec<Entry>,
    /// Whether a person decides on what no rule matches, so that the rules may only deny.
    may_only_deny: bool,
}

/// A rule, or a file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Rule(Rule),
    File(RuleFile),
}

/// A file of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleFile {
    /// The option with its value, for errors: `--allow @FILE`.
    name: String,
    path: PathBuf,
    kind: ListKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListKind {
    Allowed,
    Denied,
    /// Of `--check-list`.
    Checked,
    /// Of `--allow` and of `--ask-list`, which writes it: it may be missing or empty.
    Answered,
}

impl RuleArgs {
    /// The access lists; `None` if there are none.
    pub(super) fn rules(&self) -> Result<Option<AccessRules>, UsageError> {
        let mut rules = Vec::new();
        for entry in &self.rules {
            match entry {
                Entry::Rule(rule) => rules.push(rule.clone()),
                Entry::File(file) => rules.extend(file.read()?),
            }
        }
        let may_only_deny = self.may_only_deny && !rules.is_empty();
        if may_only_deny || self.rules.iter().any(Entry::may_be_empty) {
            // What is not on the list is denied, or asked about.
            Ok(Some(AccessRules::deny_others(rules)))
        } else {
            AccessRules::new(rules).map_err(UsageError::from_error)
        }
    }

    /// Adds the rules of the file of `--check-list`.
    pub(super) fn add_check_list(&mut self, path: &Path) {
        self.rules.push(Entry::File(RuleFile {
            name: format!("--check-list {}", path.display()),
            path: path.to_owned(),
            kind: ListKind::Checked,
        }));
    }

    /// Lets the rules only deny, for `--ask`.
    pub(super) fn let_only_deny(&mut self) {
        self.may_only_deny = true;
    }

    /// Lets the list of `--ask-list` be missing or empty, if a rule names it, too.
    pub(super) fn add_ask_list(&mut self, path: &Path) {
        let written = absolute(path).ok();
        for entry in &mut self.rules {
            if let Entry::File(file) = entry
                && file.kind == ListKind::Allowed
                && absolute(&file.path).ok() == written
            {
                file.kind = ListKind::Answered;
            }
        }
    }

    /// A host in a rule that has the same name as a file in the working directory: perhaps the `@` before it is missing.
    pub(super) fn host_like_a_file(&self) -> Option<String> {
        self.rules.iter().find_map(|entry| match entry {
            Entry::Rule(rule) => {
                let rule = rule.to_string();
                let (_, host) = rule.split_once(' ')?;
                (host != "any" && Path::new(host).is_file()).then(|| host.to_owned())
            }
            _ => None,
        })
    }

    /// The files of rules.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        self.rules.iter().filter_map(|entry| match entry {
            Entry::Rule(_) => None,
            Entry::File(file) => Some(file.path.as_path()),
        })
    }
}

impl RuleFile {
    fn read(&self) -> Result<Vec<Rule>, UsageError> {
        match self.kind {
            ListKind::Allowed => rule_file::read_allowed(&self.name, &self.path, Rule::allow),
            ListKind::Denied => rule_file::read_nonempty(&self.name, &self.path, Rule::deny),
            // An empty list is valid: everything is denied then, and the report has what to add.
            ListKind::Checked => {
                rule_file::require_file(&self.name, &self.path)?;
                rule_file::read(&self.name, &self.path, Rule::allow)
            }
            ListKind::Answered if matches!(self.path.try_exists(), Ok(false)) => Ok(Vec::new()),
            ListKind::Answered => rule_file::read(&self.name, &self.path, Rule::allow),
        }
    }
}

impl Entry {
    fn may_be_empty(&self) -> bool {
        matches!(self, Self::File(file) if matches!(file.kind, ListKind::Checked | ListKind::Answered))
    }

    /// Parses a rule with its action, such as `allow @FILE`. `name` is the option with its value, for errors.
    fn parse(rule: &str, name: String) -> Result<Self, ParseRuleError> {
        let file = rule.split_once(' ').and_then(|(action, rest)| {
            let path = list_file(rest.trim())?.to_owned();
            let kind = match action {
                ALLOW => ListKind::Allowed,
                DENY => ListKind::Denied,
                _ => return None,
            };
            Some(RuleFile { name, path, kind })
        });
        file.map_or_else(|| rule.parse().map(Self::Rule), |file| Ok(Self::File(file)))
    }
}

/// The option of a list: `name` is the action of its rules.
fn list_arg(name: &'static str, help: String) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("RULE")
        .action(ArgAction::Append)
        .value_parser(move |text: &str| {
            let rule = format!("{name} {text}");
            Entry::parse(&rule, format!("--{rule}"))
        })
        .help(help)
}

impl clap::Args for RuleArgs {
    fn augment_args(command: Command) -> Command {
        let rules = Arg::new(RULES)
            .long(RULES)
            .value_name("RULE")
            .action(ArgAction::Append)
            .value_parser(|rule: &str| Entry::parse(rule, format!("--{RULES} {rule}")))
            .hide_short_help(true)
            .hide_long_help(true)
            .help(
                "Allowed and denied requests, the first match decides: `allow [METHOD[,METHOD] ]HOST[:PORT][/PATH]`, or the same \
                 with `deny` (--allow, --deny); `allow @FILE`, `deny @FILE` for the rules of a file, one a line",
            );
        command
            .arg(list_arg(
                ALLOW,
                allow_help("at which what is neither TLS nor HTTP is relayed, too,"),
            ))
            .arg(list_arg(
                DENY,
                "Deny requests to this host, or to those of @FILE; may be repeated. With --check, a request needs the consent of the \
                 rules and of the service"
                    .to_owned(),
            ))
            .arg(rules)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut indexed_rules = Vec::new();
        for name in [ALLOW, DENY, RULES] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let rules = matches.get_many::<Entry>(name).into_iter().flatten();
            indexed_rules.extend(indices.zip(rules.cloned()));
        }
        indexed_rules.sort_by_key(|(index, _)| *index);
        let rules = indexed_rules.into_iter().map(|(_, rule)| rule).collect();
        Ok(Self {
            rules,
            may_only_deny: false,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The help text of `--allow`, with what the port of a rule means.
pub(super) fn allow_help(port: &str) -> String {
    format!(
        "Allow requests to this host: example.com, *.example.com, an address or a network, or any for every host. A rule for one \
         exact name or address also allows a private address; other rules are for public ones. `GET,HEAD example.com/pub` is for \
         these methods below this path, and @FILE for the rules of a file. db.internal:5432 names a port, {port} unless it is one \
         of HTTP's (80, 443, 8000, 8080, 8443). May be repeated: the first match of --allow and --deny decides, and what matches \
         none is denied"
    )
}

const ALLOW: &str = "allow";
const DENY: &str = "deny";
const RULES: &str = "rules";
