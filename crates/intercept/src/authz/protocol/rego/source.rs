//! The files of a policy.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use peername_sys::fs::text_file;
use serde_json::{Value, json};

use crate::authz::config::error::ConfigError;

/// The location of a policy and its rule: `FILE` or `DIR`, then `#PACKAGE/RULE` to select a rule, or `#PACKAGE` to select one
/// of several packages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyPath {
    path: PathBuf,
    pub(super) rule: Option<String>,
}

/// The content of a policy's files.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Source {
    /// The files in Rego.
    pub(super) modules: Vec<(PathBuf, String)>,
    /// The `data.json` of each directory, with the names of the directories above it.
    data: Vec<(Vec<String>, Value)>,
}

impl PolicyPath {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl FromStr for PolicyPath {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (path, rule) = match text.split_once('#') {
            Some((path, rule)) => (path, Some(rule.to_owned())),
            None => (text, None),
        };
        match path.is_empty() {
            true => Err(ConfigError::Url("name the policy: rego:FILE or rego:DIR")),
            false => Ok(Self {
                path: path.into(),
                rule,
            }),
        }
    }
}

impl Source {
    /// Reads the files.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut source = Self::default();
        match path.is_dir() {
            true => source.read_directory(path, &mut Vec::new())?,
            false => source.read_module(path)?,
        }
        match source.modules.is_empty() {
            true => Err(refuse(path, &"no file NAME.rego in this directory")),
            false => Ok(source),
        }
    }

    /// Reads `*.rego` except tests, and `data.json`, as OPA reads a bundle. Names that begin with a dot are skipped: in a
    /// Kubernetes ConfigMap they are a second copy of its files.
    fn read_directory(&mut self, path: &Path, names: &mut Vec<String>) -> Result<(), ConfigError> {
        let entries = sorted_entries(path).map_err(|error| refuse(path, &error))?;
        for entry in entries {
            let Some(name) = entry
                .file_name()
                .and_then(|name| name.to_str())
                .filter(|name| !name.starts_with('.'))
            else {
                continue;
            };
            // A symbolic link to a directory is not followed: it may lead to a parent directory.
            if fs::symlink_metadata(&entry).is_ok_and(|metadata| metadata.is_dir()) {
                names.push(name.to_owned());
                self.read_directory(&entry, names)?;
                names.pop();
            } else if name.ends_with(".rego") && !name.ends_with("_test.rego") {
                self.read_module(&entry)?;
            } else if name == "data.json" {
                self.read_data(&entry, names.clone())?;
            }
            if self.modules.len() + self.data.len() > MAX_FILES {
                let why = format!("more than {MAX_FILES} files in this directory");
                return Err(refuse(path, &why));
            }
        }
        Ok(())
    }

    fn read_module(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = text_file::read(path).map_err(|error| refuse(path, &error))?;
        self.modules.push((path.to_owned(), text));
        Ok(())
    }

    fn read_data(&mut self, path: &Path, names: Vec<String>) -> Result<(), ConfigError> {
        let text = text_file::read(path).map_err(|error| refuse(path, &error))?;
        let data: Value = serde_json::from_str(&text).map_err(|error| refuse(path, &error))?;
        match data.is_object() {
            true => self.data.push((names, data)),
            false => return Err(refuse(path, &"not an object")),
        }
        Ok(())
    }

    /// The data documents, each nested in objects that are named after its directories.
    pub(super) fn data_documents(&self) -> impl Iterator<Item = Value> {
        self.data.iter().map(|(names, data)| {
            names
                .iter()
                .rev()
                .fold(data.clone(), |inner, name| json!({ name: inner }))
        })
    }
}

fn sorted_entries(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = fs::read_dir(path)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable();
    Ok(entries)
}

fn refuse(path: &Path, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Policy(format!("{}: {why}", path.display()))
}

/// Formats an error as one line, with file, line, column, and message. The library writes several lines:
///
/// ```text
/// --> FILE:LINE:COLUMN
///   |
/// 7 | the line
///   |     ^
/// error: what is wrong
/// ```
pub(super) fn format_error(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let mut position = None;
    let mut messages = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("--> ") {
            position = position.or(Some(found));
        } else if let Some(message) = line.strip_prefix("error: ") {
            messages.push(message);
        }
    }
    match (position, messages.is_empty()) {
        (Some(position), false) => format!("{position}: {}", messages.join("; ")),
        _ => text,
    }
}

/// The maximum number of files of one policy.
const MAX_FILES: usize = 1000;
