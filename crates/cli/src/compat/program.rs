//! Which program is asked for.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::{Stop, Translation, World};
use super::{cloudflare, go_mmproxy, mmproxy_rs, udppp};

/// The programs whose command line is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// kzemek/go-mmproxy and path-network/go-mmproxy: the former has all flags of the latter.
    GoMmproxy,
    /// saiko-tech/mmproxy-rs, whose binary is called `mmproxy`.
    MmproxyRs,
    /// cloudflare/mmproxy, whose binary is called `mmproxy` too.
    Cloudflare,
    /// b23r0/udppp.
    Udppp,
}

impl Program {
    /// By the argument of `--compat`.
    pub(super) fn named(name: &OsStr) -> Option<Self> {
        match name.to_str()? {
            "go-mmproxy" => Some(Self::GoMmproxy),
            "mmproxy-rs" => Some(Self::MmproxyRs),
            "cloudflare-mmproxy" => Some(Self::Cloudflare),
            "udppp" => Some(Self::Udppp),
            _ => None,
        }
    }

    /// By the name the binary was called by: that of a link to it.
    pub(super) fn called(name: &OsStr, args: &[OsString]) -> Option<Self> {
        match Path::new(name).file_name()? {
            name if name == "mmproxy" => Some(Self::of_two(args)),
            name => Self::named(name),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GoMmproxy => "go-mmproxy",
            Self::MmproxyRs => "mmproxy-rs",
            Self::Cloudflare => "cloudflare-mmproxy",
            Self::Udppp => "udppp",
        }
    }

    pub(super) fn translate(
        self,
        args: &[OsString],
        world: World<'_>,
    ) -> Result<Translation, Stop> {
        match self {
            Self::GoMmproxy => go_mmproxy::translate(args),
            Self::MmproxyRs => mmproxy_rs::translate(args, world),
            Self::Cloudflare => cloudflare::translate(args),
            Self::Udppp => udppp::translate(args, world),
        }
    }

    /// Two programs are called `mmproxy`: it is the one that understands the command line. If both do,
    /// it is cloudflare's when the four options are there without which that one does not start. A
    /// mark too many harms less than one too few.
    fn of_two(args: &[OsString]) -> Self {
        match (mmproxy_rs::understands(args), cloudflare::understands(args)) {
            (false, true) => Self::Cloudflare,
            (true, true) if cloudflare::is_complete(args) => Self::Cloudflare,
            _ => Self::MmproxyRs,
        }
    }
}

pub(super) const NAMES: [&str; 4] = ["go-mmproxy", "mmproxy-rs", "cloudflare-mmproxy", "udppp"];
