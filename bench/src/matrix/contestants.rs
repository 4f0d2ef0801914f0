//! The contestants of the matrix.
//!
//! All have the same task: listen on one loopback port, take PROXY protocol headers from loopback peers, connect to
//! one backend as the client that the header names. Otherwise they keep their defaults, except that logging
//! is off and that they may use every core.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::host::program::version;
use crate::load::spec::Preface;
use crate::matrix::cases::MatrixWork;
use crate::matrix::contestants::command_line::CommandLine;
use crate::matrix::contestants::setup::ProxySetup;
use crate::wire::transport::Transport;

pub(super) mod command_line;
mod haproxy;
mod nginx;
pub(super) mod setup;

/// A contestant: a row of the tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum MatrixContestant {
    /// No proxy: what machine, generator and backend do by themselves.
    Direct,
    /// HAProxy's binary.
    Haproxy(PathBuf),
    /// nginx's binary.
    Nginx(PathBuf),
    /// peername, go-mmproxy, and any other program that is configured by its arguments.
    CommandLine(CommandLine),
    /// peername with its admin endpoint at [`ADMIN`], which an observer queries during the load.
    Observed(CommandLine),
    /// The backend itself in place of a proxy, either plain or started by `peername exec`.
    Backend(CommandLine, Preface),
}

impl MatrixContestant {
    /// The command that runs the program at the proxy's address, in the foreground; writes its configuration file if it
    /// has one. None for direct connections to the backend.
    pub(super) fn command(&self, setup: &ProxySetup) -> Result<Option<Command>> {
        let command = match self {
            Self::Direct => return Ok(None),
            Self::Haproxy(program) => haproxy::command(program, setup)?,
            Self::Nginx(program) => nginx::command(program, setup)?,
            Self::CommandLine(line) | Self::Observed(line) | Self::Backend(line, _) => {
                line.command(setup)?
            }
        };
        Ok(Some(command))
    }

    /// What the generator has to send first.
    pub(super) fn preface(&self) -> Preface {
        match self {
            Self::Direct => Preface::None,
            Self::Backend(_, preface) => *preface,
            _ => Preface::Proxy,
        }
    }

    pub(super) fn is_backend(&self) -> bool {
        matches!(self, Self::Backend(..))
    }

    fn program(&self) -> Option<&Path> {
        match self {
            Self::Direct => None,
            Self::Haproxy(program) | Self::Nginx(program) => Some(program),
            Self::CommandLine(line) | Self::Observed(line) | Self::Backend(line, _) => {
                Some(&line.program)
            }
        }
    }
}

impl Contestant for MatrixContestant {
    type Work = MatrixWork;

    fn name(&self) -> &str {
        match self {
            Self::Direct => "direct",
            Self::Haproxy(_) => "haproxy",
            Self::Nginx(_) => "nginx",
            Self::CommandLine(line) | Self::Observed(line) | Self::Backend(line, _) => &line.name,
        }
    }

    fn skip_reason(&self) -> Option<String> {
        let program = self.program()?;
        match self {
            _ if !program.is_file() => Some(format!("{} is not there", program.display())),
            Self::Nginx(program) => nginx::skip_reason(program),
            _ => None,
        }
    }

    fn version(&self) -> String {
        let Some(program) = self.program() else {
            return String::from("no proxy");
        };
        let flag = match self {
            Self::Haproxy(_) | Self::Nginx(_) => "-v",
            _ => "--version",
        };
        version(program, flag)
    }

    fn supports(&self, work: &MatrixWork) -> bool {
        let transport = work.workload.transport();
        match self {
            Self::Direct => true,
            Self::Haproxy(_) | Self::Nginx(_) => transport == Transport::Tcp,
            Self::CommandLine(line) | Self::Observed(line) | Self::Backend(line, _) => {
                line.carries(transport)
            }
        }
    }
}

/// The admin endpoint of [`MatrixContestant::Observed`].
pub(super) const ADMIN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9300);
