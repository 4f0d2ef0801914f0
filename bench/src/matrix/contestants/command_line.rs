//! A contestant that needs no configuration file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::host::program::resolve;
use crate::matrix::contestants::setup::ProxySetup;
use crate::wire::transport::Transport;

/// A program and its arguments, in which `{listen}` and `{backend}` are replaced by the addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandLine {
    pub(super) name: String,
    pub(super) program: PathBuf,
    /// The arguments for each transport that the program carries.
    arguments: Vec<(Transport, Vec<String>)>,
}

impl CommandLine {
    /// Creates a contestant that carries no transport yet.
    pub(crate) fn new(name: &str, program: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: resolve(program),
            arguments: Vec::new(),
        }
    }

    /// Adds a transport, with arguments separated by white space; there is no quoting.
    pub(crate) fn over(mut self, transport: Transport, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        self.arguments.push((transport, arguments));
        self
    }

    /// Appends arguments, for every transport.
    pub(crate) fn with(mut self, further: &str) -> Self {
        for (_, arguments) in &mut self.arguments {
            arguments.extend(further.split_whitespace().map(str::to_owned));
        }
        self
    }

    /// Parses `NAME=PROGRAM ARGUMENTS`, for TCP.
    pub(crate) fn parse_tcp(text: &str) -> Result<Self> {
        Self::parse(text, Transport::Tcp)
    }

    /// Parses `NAME=PROGRAM ARGUMENTS`, for UDP.
    pub(crate) fn parse_udp(text: &str) -> Result<Self> {
        Self::parse(text, Transport::Udp)
    }

    fn parse(text: &str, transport: Transport) -> Result<Self> {
        let (name, line) = text.split_once('=').context("expected NAME=COMMAND")?;
        let line = line.trim();
        let (program, arguments) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        anyhow::ensure!(
            !name.is_empty() && !program.is_empty(),
            "expected NAME=COMMAND"
        );
        Ok(Self::new(name, Path::new(program)).over(transport, arguments))
    }

    fn arguments(&self, transport: Transport) -> Option<&[String]> {
        self.arguments
            .iter()
            .find(|(known, _)| *known == transport)
            .map(|(_, arguments)| arguments.as_slice())
    }

    pub(super) fn carries(&self, transport: Transport) -> bool {
        self.arguments(transport).is_some()
    }

    /// Returns the command, with the addresses in its arguments.
    pub(super) fn command(&self, setup: &ProxySetup) -> Result<Command> {
        let arguments = self
            .arguments(setup.transport)
            .with_context(|| format!("{} does not know {:?}", self.name, setup.transport))?;
        let mut command = Command::new(&self.program);
        command.args(arguments.iter().map(|argument| {
            argument
                .replace("{listen}", &setup.listen.to_string())
                .replace("{backend}", &setup.backend.to_string())
        }));
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_replaced_by_addresses() {
        let line = CommandLine::parse_tcp("x=/bin/relay -l {listen} --to={backend}").unwrap();
        let setup = ProxySetup {
            transport: Transport::Tcp,
            listen: "127.0.0.1:1".parse().unwrap(),
            backend: "127.0.0.1:2".parse().unwrap(),
            directory: PathBuf::new(),
        };
        let command = line.command(&setup).unwrap();
        assert_eq!(line.name, "x");
        assert_eq!(command.get_program(), "/bin/relay");
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(arguments, ["-l", "127.0.0.1:1", "--to=127.0.0.1:2"]);
    }

    #[test]
    fn each_transport_has_its_own_arguments() {
        let line = CommandLine::new("x", Path::new("/bin/relay"))
            .over(Transport::Udp, "-u")
            .with("-q");
        assert!(line.carries(Transport::Udp) && !line.carries(Transport::Tcp));
        assert_eq!(line.arguments(Transport::Udp).unwrap(), ["-u", "-q"]);
    }

    #[test]
    fn contestant_without_name_or_command_is_refused() {
        for text in ["relay", "=relay", "relay=", "relay= "] {
            assert!(CommandLine::parse_tcp(text).is_err(), "{text:?} was taken");
        }
    }
}
