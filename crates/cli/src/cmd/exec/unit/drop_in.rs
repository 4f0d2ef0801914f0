//! The drop-in of a unit: its command lines with `peername exec` in front, and the settings of its sandbox that `exec` needs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

use peername_observe::shell::quote;

use super::service_unit::ServiceUnit;

/// A drop-in; `Display` writes its text.
#[derive(Debug)]
pub(crate) struct DropIn {
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

/// A setting of the sandbox that adds to the unit's own.
#[derive(Debug)]
struct SandboxSetting {
    key: &'static str,
    value: String,
    reason: &'static str,
}

/// The first words of the new command lines.
#[derive(Debug)]
pub(crate) struct Launcher {
    pub(crate) binary: PathBuf,
    /// The library that is loaded into the server; `None` with `--mode notify`.
    pub(crate) library: Option<PathBuf>,
    /// The options of `peername exec`.
    pub(crate) options: Vec<String>,
}

/// Why `peername exec` can't start a unit's server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unsuitable {
    #[error(
        "{0} starts no server that stays (Type=oneshot): name the unit that does, such as an instance (systemctl list-units \
         {instances})", instances = quote(&format!("{}@*", .0.trim_end_matches(".service")))
    )]
    Oneshot(String),
    #[error("{0} has no ExecStart=")]
    NoCommand(String),
    #[error(
        "{0} gets a socket as standard input (inetd style, as with Accept=yes): exec reads the headers of connections that the server \
         itself accepts"
    )]
    Inetd(String),
    #[error("{unit}: {key}={value}: `peername` and its library would have to be in that tree")]
    OtherRoot {
        unit: String,
        key: &'static str,
        value: String,
    },
    #[error("{}: its ExecStart= begins with `peername exec` already: remove that first", .0.display())]
    HasLauncher(PathBuf),
    #[error("{}: it sets ExecStart=, and systemd reads it after {FILE_NAME}: rename it", .0.display())]
    ReadLater(PathBuf),
    #[error("{unit}: ExecStart={command}: the prefix {prefix:?} is not supported")]
    Prefix {
        unit: String,
        command: String,
        prefix: char,
    },
}

impl DropIn {
    /// Makes the drop-in for a unit that was read without the file of this drop-in.
    ///
    /// # Errors
    ///
    /// `peername exec` can't start the unit's server.
    pub(crate) fn for_unit(unit: &ServiceUnit, launcher: &Launcher) -> Result<Self, Unsuitable> {
        refuse_unsuitable(unit)?;
        let command = supported_command(unit)?;
        let sandbox = if command.is_unconfined() {
            Vec::new()
        } else {
            sandbox_settings(unit, launcher)
        };
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
    pub(crate) fn lines_missing_in(&self, text: &str) -> Vec<String> {
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
    let is_drop_in = file
        .extension()
        .is_some_and(|extension| extension == "conf");
    if is_drop_in && file.file_name() > Some(OsStr::new(FILE_NAME)) {
        return Err(Unsuitable::ReadLater(file.to_owned()));
    }
    Ok(command)
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

    fn has_launcher(&self) -> bool {
        let mut words = self.words.split_ascii_whitespace();
        let program = words.next().unwrap_or_default();
        program.rsplit('/').next() == Some("peername") && words.next() == Some("exec")
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

/// The settings that the unit's sandbox lacks.
fn sandbox_settings(unit: &ServiceUnit, launcher: &Launcher) -> Vec<SandboxSetting> {
    let mut executed = vec![launcher.binary.as_path()];
    executed.extend(launcher.library.as_deref());
    let mut settings = vec![
        SandboxSetting {
            key: "SystemCallFilter",
            value: denied_calls(unit),
            reason: "The supervisor answers accept(2) and getpeername(2) for processes without the library.",
        },
        SandboxSetting {
            key: "RestrictAddressFamilies",
            value: denied_families(unit),
            reason: "The supervisor finds closed connections by AF_NETLINK, and opens wake-up connections by the others.",
        },
        SandboxSetting {
            key: "ExecPaths",
            value: uncovered_paths(unit, "NoExecPaths", "ExecPaths", &executed),
            reason: "The program in front of the server, and the library that is loaded into it.",
        },
        SandboxSetting {
            key: "ReadWritePaths",
            value: uncovered_paths(
                unit,
                "ReadOnlyPaths",
                "ReadWritePaths",
                &[Path::new("/dev/shm")],
            ),
            reason: "The table of clients is a file there.",
        },
    ];
    settings.retain(|setting| !setting.value.is_empty());
    settings
}

/// The system calls that the supervisor makes and the unit's filter denies.
fn denied_calls(unit: &ServiceUnit) -> String {
    let filter = unit.list("SystemCallFilter");
    let capset = has_sys_ptrace(unit).then_some(&CAPSET);
    CALLS
        .iter()
        .chain(capset)
        .filter(|call| !permits(&filter, |word| call.is_named(word)))
        .map(|call| call.name)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Whether the supervisor starts with CAP_SYS_PTRACE. If so, it drops all other capabilities by capset(2).
fn has_sys_ptrace(unit: &ServiceUnit) -> bool {
    let is_root = matches!(unit.last("User"), None | Some("root" | "0"));
    is_root
        && permits(&unit.list("CapabilityBoundingSet"), |word| {
            word == "CAP_SYS_PTRACE"
        })
}

/// The address families that the supervisor needs and the unit denies. A wake-up connection has the family of its listener. If
/// the unit permits an internet family, that is the listener's. If it permits none, systemd has opened the listener, and both
/// families are needed.
fn denied_families(unit: &ServiceUnit) -> String {
    let list = unit.list("RestrictAddressFamilies");
    let is_permitted = |family: &str| permits(&list, |word| word == family);
    let mut denied = Vec::new();
    if !INTERNET_FAMILIES.iter().any(|family| is_permitted(family)) {
        denied.extend(INTERNET_FAMILIES);
    }
    if !is_permitted("AF_NETLINK") {
        denied.push("AF_NETLINK");
    }
    denied.join(" ")
}

/// Whether a list permits something. A value with `~` lists what is denied, any other value what is allowed. The last value
/// that names the thing decides. If no value names it, it is permitted if the first value is one with `~` (systemd.exec(5),
/// SystemCallFilter=).
fn permits(list: &[&str], is_named: impl Fn(&str) -> bool) -> bool {
    let Some(first) = list.first() else {
        return true;
    };
    let mut permits = first.starts_with('~');
    for value in list {
        let mut names = value
            .trim_start_matches('~')
            .split_ascii_whitespace()
            // An error number may follow a call.
            .map(|name| name.split(':').next().unwrap_or_default());
        if names.any(&is_named) {
            permits = !value.starts_with('~');
        }
    }
    permits
}

/// Those of `paths` that the setting `restricting` of the unit covers, and that no more specific path of `permitting` covers.
fn uncovered_paths(
    unit: &ServiceUnit,
    restricting: &str,
    permitting: &str,
    paths: &[&Path],
) -> String {
    let (restricted, permitted) = (unit.list(restricting), unit.list(permitting));
    paths
        .iter()
        .filter(|path| cover_depth(&restricted, path) > cover_depth(&permitted, path))
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The number of components of the longest path in these lists that is `path` or above it; 0 if there is none.
fn cover_depth(lists: &[&str], path: &Path) -> usize {
    lists
        .iter()
        .flat_map(|list| list.split_ascii_whitespace())
        .map(|word| Path::new(word.trim_start_matches(['-', '+'])))
        .filter(|cover| path.starts_with(cover))
        .map(|cover| cover.components().count())
        .max()
        .unwrap_or(0)
}

/// A system call of the supervisor, and the groups that it belongs to (systemd-analyze syscall-filter) in all versions of
/// systemd.
struct SystemCall {
    name: &'static str,
    groups: &'static [&'static str],
}

impl SystemCall {
    fn is_named(&self, word: &str) -> bool {
        word == self.name || self.groups.contains(&word)
    }
}

/// The system calls that `peername_exec::interfaces` tries.
const CALLS: [SystemCall; 6] = [
    SystemCall {
        name: "seccomp",
        groups: &["@sandbox", "@known"],
    },
    SystemCall {
        name: "pidfd_open",
        groups: &["@process", "@system-service", "@known"],
    },
    SystemCall {
        name: "pidfd_getfd",
        groups: &["@debug", "@known"],
    },
    SystemCall {
        name: "pidfd_send_signal",
        groups: &["@process", "@system-service", "@known"],
    },
    SystemCall {
        name: "process_vm_readv",
        groups: &["@ipc", "@system-service", "@known"],
    },
    SystemCall {
        name: "process_vm_writev",
        groups: &["@ipc", "@system-service", "@known"],
    },
];
const CAPSET: SystemCall = SystemCall {
    name: "capset",
    groups: &["@privileged", "@system-service", "@known"],
};
const INTERNET_FAMILIES: [&str; 2] = ["AF_INET", "AF_INET6"];
/// The name of the drop-in's file.
pub(crate) const FILE_NAME: &str = "peername.conf";
/// How the first line of each drop-in of `--unit` begins, or the second line, below the path that `--print` writes. It tells
/// these drop-ins from others.
pub(crate) const MARK: &str = "# Made by `peername exec --unit";
