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

    /// The option of this program that is translated into a native one; `None` if it has none.
    pub(super) fn own_option(self, native: &str) -> Option<&'static str> {
        OPTIONS
            .iter()
            .find(|(option, _)| *option == native)
            .and_then(|(_, own)| own.get(self as usize).copied())
            .filter(|own| !own.is_empty())
    }
}

/// Native options, and the options that are translated into them, of each [`Program`] in their order.
pub(super) const OPTIONS: &[(&str, [&str; Program::ALL.len()])] = &[
    ("--listen", ["-l", "-l", "-l", "-b and -l"]),
    (
        "--target",
        ["-4 or -6", "-4 or -6", "-4 or -6", "-h and -r"],
    ),
    ("--target-v4", ["-4", "-4", "-4", "-h and -r"]),
    ("--target-v6", ["-6", "-6", "-6", "-h and -r"]),
    ("--to", ["", "", "", "-h and -r"]),
    ("--trust", ["-allowed-subnets", "-a", "-a", ""]),
    ("--mark", ["-mark", "-m", "-m", ""]),
    ("--protocol", ["-p", "-p", "", ""]),
    ("--workers", ["-listeners", "--listeners", "", ""]),
    ("--close-after", ["-close-after", "-c", "", ""]),
    ("--allow-destination", ["-allow-destination", "", "", ""]),
    (
        "--dynamic-destination",
        ["-dynamic-destination", "", "", ""],
    ),
    ("--listen-transparent", ["-listen-transparent", "", "", ""]),
    ("--no-sandbox", ["", "", "-N", ""]),
];
