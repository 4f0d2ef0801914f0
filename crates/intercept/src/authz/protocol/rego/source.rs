//! The files of a policy.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use peername_sys::fs::text_file;
use serde_json::{Value, json};

use crate::authz::config::error::ConfigError;

/// Where a policy is, and its rule: `FILE`, `DIR`, or either with `#PACKAGE/RULE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyPath {
    path: PathBuf,
    pub(super) rule: Option<String>,
}

/// The content of its files.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Source {
    /// Files in Rego.
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
    ///
    /// # Errors
    ///
    /// [`ConfigError::Policy`].
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

    /// Reads all `*.rego` but tests, and `data.json`, as OPA reads a bundle. Names that begin with a dot are left out: a
    /// Kubernetes ConfigMap has its files a second time there.
    fn read_directory(&mut self, path: &Path, names: &mut Vec<String>) -> Result<(), ConfigError> {
        let list = || -> std::io::Result<Vec<PathBuf>> {
            let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path()));
            entries.collect()
        };
        let mut entries = list().map_err(|error| refuse(path, &error))?;
        entries.sort_unstable();
        for entry in entries {
            let name = entry.file_name().and_then(|name| name.to_str());
            let Some(name) = name
                .filter(|name| !name.starts_with('.'))
                .map(str::to_owned)
            else {
                continue;
            };
            // Not through a link, which may lead upwards.
            if fs::symlink_metadata(&entry).is_ok_and(|about| about.is_dir()) {
                names.push(name);
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

    /// Each document below the names of its directories.
    pub(super) fn data_documents(&self) -> impl Iterator<Item = Value> {
        let nested = |(names, data): &(Vec<String>, Value)| {
            names
                .iter()
                .rev()
                .fold(data.clone(), |inner, name| json!({ name: inner }))
        };
        self.data.iter().map(nested)
    }
}

fn refuse(path: &Path, why: &dyn std::fmt::Display) -> ConfigError {
    ConfigError::Policy(format!("{}: {why}", path.display()))
}

/// An error in one line: file, line, column, and what is wrong. The library shows the line of the policy between them:
///
/// ```text
/// --> FILE:LINE:COLUMN
///   |
/// 7 | the line
///   |     ^
/// error: what is wrong
/// ```
pub(super) fn located(error: &anyhow::Error) -> String {
    let text = error.to_string();
    let mut position = None;
    let mut what = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(at) = line.strip_prefix("--> ") {
            position = position.or(Some(at));
        } else if let Some(error) = line.strip_prefix("error: ") {
            what.push(error);
        }
    }
    match (position, what.is_empty()) {
        (Some(position), false) => format!("{position}: {}", what.join("; ")),
        _ => text,
    }
}

/// Files of one policy.
const MAX_FILES: usize = 1000;
