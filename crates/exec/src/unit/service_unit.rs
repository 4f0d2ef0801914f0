//! Reads service units from their files (systemd.unit(5), systemd.syntax(7)).
//!
//! The manager is not asked: `systemctl show` joins the words of a command line without their quotes, and an image that is
//! being built has units, but no manager.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::iter;
use std::path::{Path, PathBuf};

use peername_observe::shell::quote;

use super::unit_name::UnitName;

/// A service unit: the settings of its file and of its drop-ins, in the order in which systemd reads them.
#[derive(Debug)]
pub struct ServiceUnit {
    /// The unit's own name, also if it was read by an alias.
    pub name: String,
    settings: Vec<Setting>,
}

/// An assignment in a file.
#[derive(Debug)]
struct Setting {
    file: PathBuf,
    section: String,
    key: String,
    value: String,
}

/// Why a unit can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No file of the name is in the directories of units.
    #[error("{name}: no such unit; `systemctl list-unit-files '*.service'` lists all")]
    Missing {
        /// The unit.
        name: String,
    },
    /// The unit is masked (systemctl(1)).
    #[error("{name} is masked ({}): systemctl unmask {}", file.display(), quote(name))]
    Masked {
        /// The unit.
        name: String,
        /// The link to /dev/null, or the empty file.
        file: PathBuf,
    },
    /// A file or directory can't be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file or directory.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
}

impl ServiceUnit {
    /// Reads a unit below `root`, without the drop-ins of the name `left_out`.
    pub fn read(root: &Path, name: &str, left_out: &str) -> Result<Self, ReadError> {
        let fragment = Fragment::find(root, name)?;
        let mut settings = read_settings(&fragment.file)?;
        for (file_name, file) in drop_ins(root, &fragment)? {
            if file_name != left_out {
                settings.extend(read_drop_in(&file)?);
            }
        }
        Ok(Self {
            name: fragment.name,
            settings,
        })
    }

    /// The last value of a setting of the section `[Service]`.
    pub fn last(&self, key: &str) -> Option<&str> {
        self.list(key).last().copied()
    }

    /// A setting of `[Service]` whose assignments form a list; an empty one clears it.
    pub fn list(&self, key: &str) -> Vec<&str> {
        self.list_in("Service", key)
    }

    /// Like [`list`](Self::list), for any section.
    pub fn list_in(&self, section: &str, key: &str) -> Vec<&str> {
        let mut list = Vec::new();
        for setting in &self.settings {
            if setting.section == section && setting.key == key {
                if setting.value.is_empty() {
                    list.clear();
                } else {
                    list.push(setting.value.as_str());
                }
            }
        }
        list
    }

    /// The assignments of a setting of `[Service]`, each with its file.
    pub(super) fn assignments(&self, key: &str) -> impl DoubleEndedIterator<Item = (&Path, &str)> {
        self.settings
            .iter()
            .filter(move |setting| setting.section == "Service" && setting.key == key)
            .map(|setting| (setting.file.as_path(), setting.value.as_str()))
    }

    /// The file that assigns a setting of `[Service]` last.
    pub fn last_file(&self, key: &str) -> Option<&Path> {
        Some(self.assignments(key).next_back()?.0)
    }

    /// Whether systemd has to guess the main process, which it can't beside the supervisor. It guesses only if a single process of
    /// the unit has its parent outside of the unit (systemd.service(5), GuessMainPID=), and the supervisor is a second such
    /// process.
    pub fn hides_main_process(&self) -> bool {
        self.last("Type") == Some("forking")
            && self.last("PIDFile").is_none()
            && self.last("GuessMainPID").and_then(parse_boolean) != Some(false)
    }
}

/// The file of a unit, without its drop-ins.
#[derive(Debug)]
struct Fragment {
    name: String,
    file: PathBuf,
}

impl Fragment {
    /// Finds the file of the unit. An empty file, or one that is not regular, masks the unit.
    fn find(root: &Path, name: &str) -> Result<Self, ReadError> {
        let missing = || ReadError::Missing {
            name: name.to_owned(),
        };
        let Self { name, file } = Self::resolve(root, name).ok_or_else(missing)?;
        match fs::metadata(&file) {
            Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(Self { name, file }),
            Ok(_) => Err(ReadError::Masked { name, file }),
            Err(source) => Err(ReadError::Unreadable { path: file, source }),
        }
    }

    /// Finds the file by the name, which may be an alias, or the first of several; `None` if no file has the name, or too
    /// many aliases lead to it.
    fn resolve(root: &Path, name: &str) -> Option<Self> {
        let mut files: Vec<_> = iter::successors(find_file(root, name), |file| {
            find_file(root, &alias_target(root, file)?)
        })
        .take(MAX_ALIAS_CHAIN + 1)
        .collect();
        if files.len() > MAX_ALIAS_CHAIN {
            return None;
        }
        let file = files.pop()?;
        let file_name = file.file_name()?.to_str()?;
        let name = UnitName::parse(file_name).with_instance_of(UnitName::parse(name));
        Some(Self {
            name: name.to_string(),
            file,
        })
    }

    /// The unit's other names. An alias of a template names each instance of the template, too, unless there is a file of that
    /// name.
    fn aliases(&self, root: &Path) -> BTreeSet<String> {
        SEARCH_PATH
            .iter()
            .flat_map(|directory| fs::read_dir(below(root, directory)))
            .flatten()
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()))
            .filter_map(|link| link.file_name().into_string().ok())
            .map(|link| {
                let name = UnitName::parse(&link);
                name.with_instance_of(UnitName::parse(&self.name))
                    .to_string()
            })
            .filter(|name| *name != self.name)
            .filter(|name| Self::resolve(root, name).is_some_and(|unit| unit.name == self.name))
            .collect()
    }
}

/// The name to which a symbolic link leads, if the target is in the search path, too. Any other link is no alias: its target is
/// the file of the link's own name, or masks that name (/dev/null).
fn alias_target(root: &Path, file: &Path) -> Option<String> {
    let target = file.parent()?.join(fs::read_link(file).ok()?);
    let directory = target.parent()?.canonicalize().ok()?;
    let is_in_search_path = SEARCH_PATH.iter().any(|parent| {
        below(root, parent)
            .canonicalize()
            .is_ok_and(|parent| directory.starts_with(parent))
    });
    let name = target.file_name()?.to_str()?.to_owned();
    is_in_search_path.then_some(name)
}

/// Parses a boolean of a unit file (systemd.syntax(7)).
pub(super) fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

/// Splits words and removes their quotes (systemd.syntax(7), "Quoting"). A quoted word with spaces becomes several.
pub(super) fn split_words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
        .map(|word| word.trim_matches(['"', '\'']))
}

/// The first file of this name, or else the first of its template.
fn find_file(root: &Path, name: &str) -> Option<PathBuf> {
    let unit = UnitName::parse(name);
    [Some(unit), unit.template()]
        .into_iter()
        .flatten()
        .flat_map(|name| SEARCH_PATH.map(|parent| below(root, parent).join(name.to_string())))
        .find(|file| file.symlink_metadata().is_ok())
}

/// The drop-ins of a unit, in the order of their names, in which systemd reads them. If several have the same name, the one in
/// the first directory counts.
fn drop_ins(root: &Path, unit: &Fragment) -> Result<BTreeMap<OsString, PathBuf>, ReadError> {
    let mut found = BTreeMap::new();
    for path in drop_in_directories(root, unit) {
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if is_nothing_to_read(&error) => continue,
            Err(source) => return Err(ReadError::Unreadable { path, source }),
        };
        for entry in entries.flatten() {
            let file = entry.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "conf")
            {
                found.entry(entry.file_name()).or_insert(file);
            }
        }
    }
    Ok(found)
}

/// The directories of drop-ins in the order of precedence: those of the unit, of its aliases, and of all units of its type.
fn drop_in_directories(root: &Path, unit: &Fragment) -> Vec<PathBuf> {
    let name = UnitName::parse(&unit.name);
    let mut directories = in_search_path(root, &name.drop_in_names());
    // systemd reads the aliases in no defined order.
    for alias in unit.aliases(root) {
        let names = UnitName::parse(&alias).drop_in_names();
        directories.extend(in_search_path(root, &names));
    }
    directories.extend(in_search_path(root, &[name.suffix.to_owned()]));
    directories
}

/// The directories of the drop-ins of these names. The order of the search path has precedence over that of the names.
fn in_search_path(root: &Path, names: &[String]) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for parent in SEARCH_PATH {
        let parent = below(root, parent);
        directories.extend(names.iter().map(|name| parent.join(format!("{name}.d"))));
    }
    directories
}

fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}

/// The settings of a drop-in. A directory or a dangling link has no settings, but still replaces files of its name.
fn read_drop_in(file: &Path) -> Result<Vec<Setting>, ReadError> {
    match read_settings(file) {
        Err(ReadError::Unreadable { source, .. }) if is_nothing_to_read(&source) => Ok(Vec::new()),
        read => read,
    }
}

fn is_nothing_to_read(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::IsADirectory
    )
}

fn read_settings(file: &Path) -> Result<Vec<Setting>, ReadError> {
    match fs::read(file) {
        // A comment may have another encoding.
        Ok(text) => Ok(parse(file, &String::from_utf8_lossy(&text))),
        Err(source) => Err(ReadError::Unreadable {
            path: file.to_owned(),
            source,
        }),
    }
}

/// The assignments of a unit file. Other lines are ignored, as by systemd.
fn parse(file: &Path, text: &str) -> Vec<Setting> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in logical_lines(text) {
        if let Some(name) = line
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
        {
            section = name.to_owned();
        } else if let Some((key, value)) = line.split_once('=') {
            let value = value.trim();
            // The blank that was trimmed after a final backslash is added again. Without it, the backslash would join the
            // drop-in's line with the next one.
            let end = if ends_in_escape(value) { " " } else { "" };
            settings.push(Setting {
                file: file.to_owned(),
                section: section.clone(),
                key: key.trim().to_owned(),
                value: format!("{value}{end}"),
            });
        }
    }
    settings
}

/// The lines without comments. A backslash at the end joins a line with the next one; comments in between are left out, too.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut joined = String::new();
    for line in text.lines().map(str::trim_start) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(start) if !ends_in_escape(start) => joined.push_str(&format!("{start} ")),
            _ => {
                joined.push_str(line.trim_end());
                lines.push(std::mem::take(&mut joined));
            }
        }
    }
    lines.push(joined);
    lines
}

/// Whether the text ends in an odd number of backslashes, of which the last escapes what follows.
fn ends_in_escape(text: &str) -> bool {
    let backslashes = text.len() - text.trim_end_matches('\\').len();
    backslashes % 2 == 1
}

/// The directories of the system's units, in which the first file of a name counts (systemd.unit(5), "Unit File Load Path").
const SEARCH_PATH: [&str; 13] = [
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
];
/// The files in a chain of aliases; systemd takes a longer chain for a loop.
const MAX_ALIAS_CHAIN: usize = 8;
