//! Service units as their files have them (systemd.unit(5), systemd.syntax(7)).
//!
//! The files are read, and not the manager asked: `systemctl show` joins the words of a command line without their quotes, and
//! an image that is being built has units, but no manager.

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
pub(crate) struct ServiceUnit {
    /// The name of the unit itself, where an alias was given.
    pub(crate) name: String,
    settings: Vec<Setting>,
}

/// An assignment.
#[derive(Debug)]
struct Setting {
    file: PathBuf,
    section: String,
    key: String,
    value: String,
}

/// Why a unit can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{name}: no file of this unit below {}", SEARCH_PATH.join(", "))]
    Missing { name: String },
    #[error("{name} is masked ({}): systemctl unmask {}", file.display(), quote(name))]
    Masked { name: String, file: PathBuf },
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

impl ServiceUnit {
    /// Reads a unit below `root`, without the drop-ins of the name `left_out`.
    ///
    /// # Errors
    ///
    /// There is no such unit, it is masked, or a file can't be read.
    pub(crate) fn read(root: &Path, name: &str, left_out: &str) -> Result<Self, ReadError> {
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

    /// A setting of the section `[Service]` of which the last assignment counts.
    pub(crate) fn last(&self, key: &str) -> Option<&str> {
        self.list(key).last().copied()
    }

    /// A setting of `[Service]` whose assignments form a list; an empty one clears it.
    pub(crate) fn list(&self, key: &str) -> Vec<&str> {
        self.list_in("Service", key)
    }

    /// The same in any section.
    pub(crate) fn list_in(&self, section: &str, key: &str) -> Vec<&str> {
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

    /// The file that assigns a setting of `[Service]` last.
    pub(crate) fn file_of(&self, key: &str) -> Option<&Path> {
        self.settings
            .iter()
            .rfind(|setting| setting.section == "Service" && setting.key == key)
            .map(|setting| setting.file.as_path())
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

    /// Looks for the name, and for the names to which it leads as an alias.
    fn resolve(root: &Path, name: &str) -> Option<Self> {
        let mut files: Vec<_> = iter::successors(look_up(root, name), |file| {
            look_up(root, &target_of_alias(root, file)?)
        })
        .take(LONGEST_CHAIN_OF_ALIASES + 1)
        .collect();
        if files.len() > LONGEST_CHAIN_OF_ALIASES {
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

    /// The unit's other names. The alias of a template is one of each instance, unless the instance has a file of its own.
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

/// The name to which a symbolic link leads, if that is in the search path, too. A link to another place is no alias: it is the
/// file of its own name, or masks it.
fn target_of_alias(root: &Path, file: &Path) -> Option<String> {
    let target = file.parent()?.join(fs::read_link(file).ok()?);
    let directory = target.parent()?.canonicalize().ok()?;
    let is_in_search_path = SEARCH_PATH.iter().any(|parent| {
        let parent = below(root, parent).canonicalize();
        parent.is_ok_and(|parent| directory.starts_with(parent))
    });
    let name = target.file_name()?.to_str()?.to_owned();
    is_in_search_path.then_some(name)
}

/// Parses a boolean of a unit file (systemd.syntax(7)).
pub(crate) fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Some(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Some(false),
        _ => None,
    }
}

/// The first file of this name, or else the first of its template.
fn look_up(root: &Path, name: &str) -> Option<PathBuf> {
    let unit = UnitName::parse(name);
    [Some(unit), unit.template()]
        .into_iter()
        .flatten()
        .flat_map(|name| SEARCH_PATH.map(|parent| below(root, parent).join(name.to_string())))
        .find(|file| file.symlink_metadata().is_ok())
}

/// The drop-ins of a unit by their names, which is the order in which they are read. Of those of one name the first counts.
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

/// The directories of drop-ins, that of most weight first: those of the unit, of its aliases, and of all units of its type.
fn drop_in_directories(root: &Path, unit: &Fragment) -> Vec<PathBuf> {
    let name = UnitName::parse(&unit.name);
    let mut directories = in_search_path(root, &name.names_of_drop_ins());
    // The order among the aliases is by chance in systemd.
    for alias in unit.aliases(root) {
        let names = UnitName::parse(&alias).names_of_drop_ins();
        directories.extend(in_search_path(root, &names));
    }
    directories.extend(in_search_path(root, &[name.suffix.to_owned()]));
    directories
}

/// A directory of the search path has more weight than a specific name.
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

/// The settings of a drop-in. A directory or a link to nothing has none, but replaces files of its name.
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
            // The blank that keeps the line from going on has to do so in a drop-in, too.
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
            Some(begun) if !ends_in_escape(begun) => joined.push_str(&format!("{begun} ")),
            _ => {
                joined.push_str(line.trim_end());
                lines.push(std::mem::take(&mut joined));
            }
        }
    }
    lines.push(joined);
    lines
}

/// Whether a backslash at the end is no escaped one itself, and so escapes what follows.
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
/// As in systemd, which takes longer ones for a loop.
const LONGEST_CHAIN_OF_ALIASES: usize = 8;
