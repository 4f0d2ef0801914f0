//! Service units as their files have them (systemd.unit(5), systemd.syntax(7)).
//!
//! The files are read, and not the manager asked: `systemctl show` joins the words of a command line without their quotes, and
//! an image that is being built has units, but no manager.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use peername_observe::shell::quote;

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
        for (file_name, file) in drop_ins(root, &fragment.name)? {
            if file_name != left_out {
                settings.extend(read_settings(&file)?);
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
    /// Finds the file by the unit's name or an alias, which is a symbolic link to a file of another name.
    fn find(root: &Path, name: &str) -> Result<Self, ReadError> {
        let missing = || ReadError::Missing {
            name: name.to_owned(),
        };
        let listed = look_up(root, name).ok_or_else(missing)?;
        let file = fs::canonicalize(&listed).map_err(|source| ReadError::Unreadable {
            path: listed.clone(),
            source,
        })?;
        if !file.is_file() {
            return Err(ReadError::Masked {
                name: name.to_owned(),
                file: listed,
            });
        }
        let file_name = file.file_name().unwrap_or_default().to_string_lossy();
        if file_name == name || template_of(name).as_deref() == Some(&*file_name) {
            let name = name.to_owned();
            return Ok(Self { name, file });
        }
        Ok(Self {
            file: look_up(root, &file_name).unwrap_or_else(|| file.clone()),
            name: file_name.into_owned(),
        })
    }
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
    [Some(name.to_owned()), template_of(name)]
        .into_iter()
        .flatten()
        .flat_map(|name| SEARCH_PATH.map(|directory| below(root, directory).join(&name)))
        .find(|file| file.symlink_metadata().is_ok())
}

/// `redis@.service` for `redis@a.service`.
fn template_of(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('@')?;
    let (_, suffix) = rest.rsplit_once('.')?;
    let template = format!("{prefix}@.{suffix}");
    (template != name).then_some(template)
}

/// The drop-ins of a unit by their names, which is the order in which they are read. Of those of one name the first counts.
fn drop_ins(root: &Path, unit: &str) -> Result<BTreeMap<OsString, PathBuf>, ReadError> {
    let mut found = BTreeMap::new();
    for directory in drop_in_directories(unit) {
        for parent in SEARCH_PATH {
            let path = below(root, parent).join(&directory);
            let entries = match fs::read_dir(&path) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
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
    }
    Ok(found)
}

/// The names of the directories of drop-ins, the most specific one first: `a-b@c.service.d`, `a-b@.service.d`,
/// `a-.service.d`, `service.d`.
fn drop_in_directories(unit: &str) -> Vec<String> {
    let mut names = vec![unit.to_owned()];
    names.extend(template_of(unit));
    let prefix = unit.split(['@', '.']).next().unwrap_or_default();
    let shorter = std::iter::successors(prefix.rsplit_once('-'), |(prefix, _)| {
        prefix.rsplit_once('-')
    });
    names.extend(shorter.map(|(prefix, _)| format!("{prefix}-.service")));
    names.push("service".to_owned());
    names.iter().map(|name| format!("{name}.d")).collect()
}

fn below(root: &Path, absolute: &str) -> PathBuf {
    root.join(absolute.trim_start_matches('/'))
}

fn read_settings(file: &Path) -> Result<Vec<Setting>, ReadError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(parse(file, &text)),
        Err(source) => Err(ReadError::Unreadable {
            path: file.to_owned(),
            source,
        }),
    }
}

/// The assignments of a unit file. What is none is left out, as systemd does.
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
            settings.push(Setting {
                file: file.to_owned(),
                section: section.clone(),
                key: key.trim().to_owned(),
                value: value.trim().to_owned(),
            });
        }
    }
    settings
}

/// The lines without comments. A backslash at the end joins a line with the next one; comments in between are left out, too.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut joined = String::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        match line.strip_suffix('\\') {
            Some(begun) => joined.push_str(&format!("{begun} ")),
            None => {
                joined.push_str(line);
                lines.push(std::mem::take(&mut joined));
            }
        }
    }
    lines.push(joined);
    lines
}

/// The directories of the system's units, in which the first file of a name counts (systemd.unit(5), "Unit File Load Path").
const SEARCH_PATH: [&str; 12] = [
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
];
