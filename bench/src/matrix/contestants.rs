//! The contestants of the matrix.
//!
//! All have the same task: listen on one loopback port, take PROXY protocol headers from loopback peers, connect to
//! one backend as the client that the header names. Otherwise they keep their defaults, except that logging
//! is off and that they may use every core.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::compare::contestant::Contestant;
use crate::host::program::run_for_output;
use crate::load::spec::Preface;
use crate::matrix::contestants::command_line::CommandLine;
use crate::matrix::contestants::haproxy::Haproxy;
use crate::matrix::contestants::nginx::Nginx;
use crate::matrix::contestants::program::ProxyProgram;
use crate::wire::transport::Transport;

pub(super) mod command_line;
pub(super) mod haproxy;
pub(super) mod nginx;
pub(super) mod program;

/// A contestant: a row of the tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum MatrixContestant {
    /// No proxy: what machine, generator and backend do by themselves.
    Direct,
    Haproxy(Haproxy),
    Nginx(Nginx),
    /// peername, go-mmproxy, and any other program that is configured by its arguments.
    CommandLine(CommandLine),
    /// peername with its admin endpoint at [`ADMIN`], which is in use meanwhile.
    Observed(CommandLine),
    /// The backend itself in place of a proxy, either plain or started by `peername exec`.
    Backend(CommandLine, Preface),
}

impl MatrixContestant {
    /// The program that listens at the proxy's address. None for direct connections to the backend.
    pub(super) fn program(&self) -> Option<&dyn ProxyProgram> {
        match self {
            Self::Direct => None,
            Self::Haproxy(program) => Some(program),
            Self::Nginx(program) => Some(program),
            Self::CommandLine(program) | Self::Observed(program) | Self::Backend(program, _) => {
                Some(program)
            }
        }
    }

    /// What the generator has to send first.
    pub(super) fn preface(&self) -> Preface {
        match self {
            Self::Direct => Preface::None,
            Self::Backend(_, preface) => *preface,
            _ => Preface::Proxy,
        }
    }

    /// Whether it is the backend itself.
    pub(super) fn is_backend(&self) -> bool {
        matches!(self, Self::Backend(..))
    }

    /// Whether it can do workloads over `transport` at all.
    pub(super) fn carries(&self, transport: Transport) -> bool {
        self.program()
            .is_none_or(|program| program.carries(transport))
    }
}

impl Contestant for MatrixContestant {
    fn name(&self) -> &str {
        self.program().map_or("direct", ProxyProgram::name)
    }

    fn skip_reason(&self) -> Option<String> {
        let program = self.program()?;
        if !program.path().is_file() {
            return Some(format!("{} is not there", program.path().display()));
        }
        program.skip_reason()
    }

    fn version(&self) -> String {
        let Some(program) = self.program() else {
            return String::from("no proxy");
        };
        let text = run_for_output(program.path(), &[program.version_flag()]).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.bytes().any(|byte| byte.is_ascii_digit()));
        line.unwrap_or("version unknown").to_owned()
    }
}

/// The admin endpoint of [`MatrixContestant::Observed`].
pub(super) const ADMIN: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 9300);
