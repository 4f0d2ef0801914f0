//! The drop-in of a unit: its command lines with `peername exec` in front, and the settings of its sandbox that `exec` needs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::iter;
use std::path::{Path, PathBuf};

use peername_observe::shell::quote;

use super::sandbox::{SandboxSetting, missing_settings};
use super::service_unit::{ServiceUnit, parse_boolean, split_words};

/// A drop-in; `Display` writes its text.
#[derive(Debug)]
pub struct DropIn {
    unit: String,
    /// The special prefixes of the unit's command, the launcher and its options.
    launcher: String,
    has_options: bool,
    /// The words of the unit's command, without its special prefixes.
    command: String,
    /// The whole command of the unit, which the drop-in replaces.
    replaced: String,
    sandbox: Vec<SandboxSetting>,
}

/// The first words of the new command lines.
#[derive(Debug)]
pub struct Launcher {
    /// The path of `peername`.
    pub binary: PathBuf,
    /// The library that is loaded into the server; `None` with `--mode notify`.
    pub library: Option<PathBuf>,
    /// The options of `peername exec`.
    pub options: Vec<String>,
}

/// Why `peername exec` can't start a unit's server.
#[derive(Debug, thiserror::Error)]
pub enum Unsuitable {
    /// The unit is of the type oneshot.
    #[error(
        "{0} starts no server that stays (Type=oneshot): name the unit that does, such as an instance (systemctl list-units \
         {instances})", instances = quote(&format!("{}@*", .0.trim_end_matches(".service")))
    )]
    Oneshot(String),
    /// The unit starts no program.
    #[error("{0} has no ExecStart=")]
    NoCommand(String),
    /// The server gets connections, not a listener.
    #[error(
        "{0} gets a socket as standard input (inetd style, as with Accept=yes): exec reads the headers of connections that the server \
         itself accepts"
    )]
    Inetd(String),
    /// The server gets a listener of another network.
    #[error(
        "{0} has a network of its own (PrivateNetwork=yes), and a socket unit opens its listener outside: from within, exec can't serve \
         connections whose header is slow, nor find closed ones. Set PrivateNetwork=no"
    )]
    PrivateNetwork(String),
    /// The server has another root directory, or an image.
    #[error("{unit}: {key}={value}: `peername` and its library would have to be in that tree")]
    OtherRoot {
        /// The unit.
        unit: String,
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
    },
    /// The unit starts its server through `peername exec` already, by this file.
    #[error("{}: its ExecStart= begins with `peername exec` already: remove that first", .0.display())]
    HasLauncher(PathBuf),
    /// A drop-in that sorts after this one would replace its command line, or take back what it permits.
    #[error("{}: it sets {key}=, and systemd reads it after {FILE_NAME}: rename it", file.display())]
    ReadLater {
        /// The other drop-in.
        file: PathBuf,
        /// The setting.
        key: &'static str,
    },
    /// The command has a special prefix that a launcher in front of it would change.
    #[error("{unit}: ExecStart={command}: the prefix {prefix:?} is not supported")]
    Prefix {
        /// The unit.
        unit: String,
        /// The command as in the unit.
        command: String,
        /// The prefix.
        prefix: char,
    },
}

impl DropIn {
    /// Makes the drop-in for a unit that was read without the file of this drop-in.
    pub fn for_unit(unit: &ServiceUnit, launcher: &Launcher) -> Result<Self, Unsuitable> {
        refuse_unsuitable(unit)?;
        let command = supported_command(unit)?;
        let sandbox = if command.is_unconfined() {
            Vec::new()
        } else {
            let library = launcher.library.as_deref();
            let executed: Vec<_> = iter::once(&*launcher.binary).chain(library).collect();
            missing_settings(unit, &executed)
        };
        for setting in &sandbox {
            refuse_later_drop_in(unit, setting.key, takes_back)?;
        }
        Ok(Self {
            unit: unit.name.clone(),
            launcher: command.launcher_line(launcher),
            has_options: !launcher.options.is_empty(),
            command: command.words.to_owned(),
            replaced: format!("{}{}", command.prefixes, command.words),
            sandbox,
        })
    }

    /// The lines of this drop-in that `text` lacks. The options of `peername exec` are compared only if this drop-in has some.
    pub fn lines_missing_in(&self, text: &str) -> Vec<String> {
        let mut missing = Vec::new();
        if !text.lines().any(|line| self.has_command(line)) {
            let launcher = if self.has_options {
                &self.launcher
            } else {
                "…"
            };
            missing.push(format!("ExecStart={launcher} -- {}", self.command));
        }
        for SandboxSetting { key, value, .. } in &self.sandbox {
            let setting = format!("{key}={value}");
            if !text.lines().any(|line| line == setting) {
                missing.push(setting);
            }
        }
        missing
    }

    /// Whether a line has this drop-in's command and, if this drop-in has options, the same options in any order.
    fn has_command(&self, line: &str) -> bool {
        line.strip_prefix("ExecStart=")
            .and_then(|line| line.strip_suffix(&format!(" -- {}", self.command)))
            .is_some_and(|launcher| {
                !self.has_options || word_set(launcher) == word_set(&self.launcher)
            })
    }
}

fn word_set(line: &str) -> BTreeSet<&str> {
    line.split(' ').collect()
}

/// Refuses a unit that gets connections of its socket unit, or a listener of another network. The units are read below `root`.
///
/// # Errors
///
/// [`Unsuitable::Inetd`] for a template that a socket unit with `Accept=yes` starts: each instance gets a connection that systemd
/// has accepted. [`Unsuitable::PrivateNetwork`].
pub fn refuse_socket_unit(root: &Path, unit: &ServiceUnit) -> Result<(), Unsuitable> {
    let name = unit.name.trim_end_matches(".service");
    let socket_unit = |name: &str| ServiceUnit::read(root, &format!("{name}.socket"), "").ok();
    let accepting = name.split_once('@').and_then(|(prefix, _)| {
        let socket = socket_unit(prefix)?;
        let accept = socket.list_in("Socket", "Accept");
        parse_boolean(accept.last()?)
    });
    if accepting == Some(true) {
        return Err(Unsuitable::Inetd(unit.name.clone()));
    }
    let is_private = unit.last("PrivateNetwork").and_then(parse_boolean) == Some(true);
    if is_private && (!unit.list("Sockets").is_empty() || socket_unit(name).is_some()) {
        return Err(Unsuitable::PrivateNetwork(unit.name.clone()));
    }
    Ok(())
}

fn refuse_unsuitable(unit: &ServiceUnit) -> Result<(), Unsuitable> {
    let name = &unit.name;
    if unit.last("Type") == Some("oneshot") {
        return Err(Unsuitable::Oneshot(name.clone()));
    }
    if unit.last("StandardInput") == Some("socket") {
        return Err(Unsuitable::Inetd(name.clone()));
    }
    for key in ["RootDirectory", "RootImage"] {
        if let Some(value) = unit.last(key) {
            return Err(Unsuitable::OtherRoot {
                unit: name.clone(),
                key,
                value: value.to_owned(),
            });
        }
    }
    Ok(())
}

/// The command line of a unit, if a launcher can be put in front of it.
fn supported_command(unit: &ServiceUnit) -> Result<CommandLine<'_>, Unsuitable> {
    let (Some(line), Some(file)) = (unit.last("ExecStart"), unit.last_file("ExecStart")) else {
        return Err(Unsuitable::NoCommand(unit.name.clone()));
    };
    let command = CommandLine::parse(line);
    if let Some(prefix) = command.unsupported_prefix() {
        return Err(Unsuitable::Prefix {
            unit: unit.name.clone(),
            command: line.to_owned(),
            prefix,
        });
    }
    if command.has_launcher() {
        return Err(Unsuitable::HasLauncher(file.to_owned()));
    }
    refuse_later_drop_in(unit, "ExecStart", |_| true)?;
    Ok(command)
}

/// Whether a value of a list takes something back. Values that only add are merged in any order; an empty one resets the list,
/// and one with `~` denies.
fn takes_back(value: &str) -> bool {
    value.is_empty() || value.starts_with('~')
}

/// Refuses an assignment in a drop-in that systemd reads after this one, if its value undoes what this one sets.
fn refuse_later_drop_in(
    unit: &ServiceUnit,
    key: &'static str,
    undoes: impl Fn(&str) -> bool,
) -> Result<(), Unsuitable> {
    let mut assignments = unit.assignments(key);
    match assignments.rfind(|(file, value)| is_later_drop_in(file) && undoes(value)) {
        Some((file, _)) => Err(Unsuitable::ReadLater {
            file: file.to_owned(),
            key,
        }),
        None => Ok(()),
    }
}

fn is_later_drop_in(file: &Path) -> bool {
    let is_drop_in = file
        .extension()
        .is_some_and(|extension| extension == "conf");
    is_drop_in && file.file_name() > Some(OsStr::new(FILE_NAME))
}

impl Display for DropIn {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            unit,
            launcher,
            command,
            replaced,
            sandbox,
            ..
        } = self;
        writeln!(
            f,
            "{MARK} {unit}`. After an upgrade of the unit, --check compares them.\n\
             # The server itself has to listen where the balancer connects, not on 127.0.0.1 alone, and\n\
             # let other addresses than loopback in (Redis: requirepass or protected-mode): see its configuration.\n\
             [Service]\n\
             # The empty line clears the unit's own command:\n\
             # ExecStart={replaced}\n\
             ExecStart=\n\
             ExecStart={launcher} -- {command}"
        )?;
        for SandboxSetting { key, value, reason } in sandbox {
            writeln!(f, "# {reason}\n{key}={value}")?;
        }
        Ok(())
    }
}

/// A command line of a unit (systemd.service(5), "Command lines").
#[derive(Debug)]
struct CommandLine<'a> {
    /// The special prefixes of the executable.
    prefixes: &'a str,
    words: &'a str,
}

impl<'a> CommandLine<'a> {
    fn parse(line: &'a str) -> Self {
        let words = line.trim_start_matches(['@', '-', ':', '+', '!', '|']);
        let prefixes = line.strip_suffix(words).unwrap_or_default();
        Self { prefixes, words }
    }

    /// `@`, which gives the program another name, and `|`, which runs it in a shell.
    fn unsupported_prefix(&self) -> Option<char> {
        self.prefixes.chars().find(|prefix| "@|".contains(*prefix))
    }

    /// Whether the command is `peername exec`, also behind env(1) with its options and variables.
    fn has_launcher(&self) -> bool {
        let mut words = split_words(self.words).skip_while(|word| {
            word.starts_with('-') || word.contains('=') || is_program(word, "env")
        });
        let program = words.next().unwrap_or_default();
        is_program(program, "peername") && words.next() == Some("exec")
    }

    /// Whether the command runs without the unit's sandbox.
    fn is_unconfined(&self) -> bool {
        self.prefixes.contains('+')
    }

    /// The new line up to the unit's own words. These are copied unchanged, because systemd replaces variables and specifiers
    /// at any position.
    fn launcher_line(&self, launcher: &Launcher) -> String {
        // The prefix `:` switches variables off.
        let has_variables = !self.prefixes.contains(':');
        let binary = launcher.binary.display().to_string();
        let mut line = format!("{}{}", self.prefixes, quote_word(&binary, has_variables));
        line.push_str(" exec");
        for option in &launcher.options {
            line.push(' ');
            line.push_str(&quote_word(option, has_variables));
        }
        line
    }
}

/// Whether a word is the path of the program of this name.
fn is_program(word: &str, name: &str) -> bool {
    word.rsplit('/').next() == Some(name)
}

/// Quotes a word of a command line, so that systemd replaces no specifiers (`%`), variables (`$`) or escapes in it.
pub(super) fn quote_word(word: &str, has_variables: bool) -> String {
    let mut word = word.replace('%', "%%");
    if has_variables {
        word = word.replace('$', "$$");
    }
    if word.contains([' ', '\t', '"', '\'', '\\', ';']) {
        let word = word.replace('\\', "\\\\").replace('"', "\\\"");
        return format!("\"{word}\"");
    }
    word
}

/// Whether a file is a drop-in that `--unit` has written, or printed with its path in front.
pub fn has_mark(text: &str) -> bool {
    text.lines().take(2).any(|line| line.starts_with(MARK))
}

/// The name of the drop-in's file.
pub const FILE_NAME: &str = "peername.conf";
/// How the first line of each drop-in of `--unit` begins, or the second line, below the path that `--print` writes. It tells
/// these drop-ins from others.
const MARK: &str = "# Made by `peername exec --unit";
