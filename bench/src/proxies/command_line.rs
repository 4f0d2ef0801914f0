//! A contestant that needs no configuration file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::proxies::{Proxy, Site, resolve};

/// A program and its arguments, in which `{listen}` and `{backend}` stand for the addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandLine {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
}

impl CommandLine {
    /// Arguments are separated by white space; there is no quoting.
    pub(crate) fn new(name: &str, program: &Path, arguments: &str, further: &str) -> Self {
        let arguments = arguments
            .split_whitespace()
            .chain(further.split_whitespace());
        Self {
            name: name.to_owned(),
            program: resolve(program),
            arguments: arguments.map(str::to_owned).collect(),
        }
    }

    /// Reads `NAME=PROGRAM ARGUMENTS`.
    ///
    /// # Errors
    /// There is no `=`, or nothing on one side of it.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let (name, line) = text.split_once('=').context("expected NAME=COMMAND")?;
        let line = line.trim();
        let (program, arguments) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        anyhow::ensure!(
            !name.is_empty() && !program.is_empty(),
            "expected NAME=COMMAND"
        );
        Ok(Self::new(name, Path::new(program), arguments, ""))
    }
}

impl Proxy for CommandLine {
    fn name(&self) -> &str {
        &self.name
    }

    fn program(&self) -> &Path {
        &self.program
    }

    fn version_flag(&self) -> &str {
        "--version"
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command.args(self.arguments.iter().map(|argument| {
            argument
                .replace("{listen}", &site.listen.to_string())
                .replace("{backend}", &site.backend.to_string())
        }));
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_the_places_of_their_names() {
        let line = CommandLine::parse("x=/bin/relay -l {listen} --to={backend}").unwrap();
        let site = Site {
            listen: "127.0.0.1:1".parse().unwrap(),
            backend: "127.0.0.1:2".parse().unwrap(),
            directory: PathBuf::new(),
        };
        let command = line.command(&site).unwrap();
        assert_eq!(line.name(), "x");
        assert_eq!(command.get_program(), "/bin/relay");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["-l", "127.0.0.1:1", "--to=127.0.0.1:2"]);
    }

    #[test]
    fn half_a_contestant_is_refused() {
        for text in ["relay", "=relay", "relay=", "relay= "] {
            assert!(CommandLine::parse(text).is_err(), "{text:?} was taken");
        }
    }
}
