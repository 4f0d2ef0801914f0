//! A contestant that needs no configuration file.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::load::Transport;
use crate::proxies::{Proxy, Site, resolve};

/// A program and its arguments, in which `{listen}` and `{backend}` stand for the addresses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandLine {
    name: String,
    program: PathBuf,
    /// For each transport it carries.
    arguments: Vec<(Transport, Vec<String>)>,
}

impl CommandLine {
    /// It carries nothing yet.
    pub(crate) fn new(name: &str, program: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: resolve(program),
            arguments: Vec::new(),
        }
    }

    /// It also carries `transport`, with arguments separated by white space; there is no quoting.
    pub(crate) fn over(mut self, transport: Transport, arguments: &str) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        self.arguments.push((transport, arguments));
        self
    }

    /// Further arguments, over whatever transport.
    pub(crate) fn with(mut self, further: &str) -> Self {
        for (_, arguments) in &mut self.arguments {
            arguments.extend(further.split_whitespace().map(str::to_owned));
        }
        self
    }

    /// Reads `NAME=PROGRAM ARGUMENTS`, for TCP.
    ///
    /// # Errors
    /// There is no `=`, or nothing on one side of it.
    pub(crate) fn parse_tcp(text: &str) -> Result<Self> {
        Self::parse(text, Transport::Tcp)
    }

    /// Reads `NAME=PROGRAM ARGUMENTS`, for UDP.
    ///
    /// # Errors
    /// As [`parse_tcp`](Self::parse_tcp).
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
        let mut all = self.arguments.iter();
        all.find_map(|(known, arguments)| (*known == transport).then_some(arguments.as_slice()))
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

    fn carries(&self, transport: Transport) -> bool {
        self.arguments(transport).is_some()
    }

    fn command(&self, site: &Site) -> Result<Command> {
        let arguments = self
            .arguments(site.transport)
            .with_context(|| format!("{} does not know {:?}", self.name, site.transport))?;
        let mut command = Command::new(&self.program);
        command.args(arguments.iter().map(|argument| {
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
        let line = CommandLine::parse_tcp("x=/bin/relay -l {listen} --to={backend}").unwrap();
        let site = Site {
            transport: Transport::Tcp,
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
    fn arguments_are_the_transports_own() {
        let line = CommandLine::new("x", Path::new("/bin/relay"))
            .over(Transport::Udp, "-u")
            .with("-q");
        assert!(line.carries(Transport::Udp) && !line.carries(Transport::Tcp));
        assert_eq!(line.arguments(Transport::Udp).unwrap(), ["-u", "-q"]);
    }

    #[test]
    fn half_a_contestant_is_refused() {
        for text in ["relay", "=relay", "relay=", "relay= "] {
            assert!(CommandLine::parse_tcp(text).is_err(), "{text:?} was taken");
        }
    }
}
