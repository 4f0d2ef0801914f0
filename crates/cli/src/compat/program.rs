//! The programs whose command lines are translated, by name.

use std::ffi::OsStr;

/// A program whose command line is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// kzemek/go-mmproxy and path-network/go-mmproxy: the former has all flags of the latter.
    GoMmproxy,
    /// saiko-tech/mmproxy-rs; its binary is called `mmproxy`.
    MmproxyRs,
    /// cloudflare/mmproxy; its binary is called `mmproxy` too.
    Cloudflare,
    /// b23r0/udppp.
    Udppp,
}

impl Program {
    const ALL: [Self; 4] = [
        Self::GoMmproxy,
        Self::MmproxyRs,
        Self::Cloudflare,
        Self::Udppp,
    ];

    /// The program of this name: the argument of `--compat`, or the name of a link to this binary.
    pub(super) fn from_name(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|program| name == program.name())
    }

    /// All names, for messages.
    pub(super) fn names() -> [&'static str; Self::ALL.len()] {
        Self::ALL.map(Self::name)
    }

    /// The name that [`Program::from_name`] parses.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GoMmproxy => "go-mmproxy",
            Self::MmproxyRs => "mmproxy-rs",
            Self::Cloudflare => "cloudflare-mmproxy",
            Self::Udppp => "udppp",
        }
    }
}
