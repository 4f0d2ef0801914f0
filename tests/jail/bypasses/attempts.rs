//! The attempts, in Python. An attempt that has got out prints `OUT`, one that was stopped `closed` with the
//! reason, and one for which this kernel is too old `skipped` with the reason.
//!
//! Each cell of `attempts/*.py` is an attempt: `# %% NAME [CONTROL]` or `# %% NAME [CONTROL, RULES]`, then the script, which
//! is run after `prelude.py`.

use crate::harness::peername::User;

/// An attempt to get out.
pub(super) struct Attempt {
    /// Its row in docs/jail-attempts.md.
    pub(super) name: &'static str,
    pub(super) control: Control,
    pub(super) rules: Rules,
    pub(super) python: &'static str,
}

/// The result of the same attempt, as root, without a jail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Succeeds,
    /// It prints OUT, and a canary must report the contact, which the program itself can't see.
    Noticed,
    /// Not tried: it would change the machine, or needs what not every kernel or test machine has.
    NotTried,
    /// Not tried without a jail, and in a jail by root only: other users can't do this anywhere.
    NotTriedRootOnly,
}

/// The rules of the jail in which an attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    /// The check service allows a.test.
    Check,
    /// a.test, but for `/none` and DELETE.
    Paths,
    /// a.test, whose requests get a secret, and h1.test.
    Secrets,
    /// Every host, and port 7001.
    Any,
    /// a.test, and each request is logged to `open/log/audit.log`.
    Logged,
}

impl Attempt {
    fn parse(cell: &'static str) -> Self {
        let (head, python) = cell.split_once('\n').expect("a script");
        let head = head.strip_suffix(']').expect("a control");
        let (name, control) = head.rsplit_once(" [").expect("a control");
        let (control, rules) = control.split_once(", ").unwrap_or((control, ""));
        let control = match control {
            "succeeds" => Control::Succeeds,
            "noticed" => Control::Noticed,
            "not-tried" => Control::NotTried,
            "not-tried-root-only" => Control::NotTriedRootOnly,
            other => panic!("{name}: no control {other}"),
        };
        let rules = match rules {
            "" => Rules::Check,
            "paths" => Rules::Paths,
            "secrets" => Rules::Secrets,
            "any" => Rules::Any,
            "logged" => Rules::Logged,
            other => panic!("{name}: no rules {other}"),
        };
        Self {
            name,
            control,
            rules,
            python,
        }
    }

    pub(super) fn applies_to(&self, user: User) -> bool {
        self.control != Control::NotTriedRootOnly || user == User::Root
    }
}

/// All attempts.
pub(super) fn all() -> impl Iterator<Item = Attempt> {
    [
        include_str!("attempts/connections.py"),
        include_str!("attempts/sockets.py"),
        include_str!("attempts/names.py"),
        include_str!("attempts/requests.py"),
        include_str!("attempts/policy.py"),
        include_str!("attempts/rights.py"),
        include_str!("attempts/processes.py"),
        include_str!("attempts/outside.py"),
        include_str!("attempts/signals.py"),
        include_str!("attempts/kernel.py"),
        include_str!("attempts/races.py"),
    ]
    .into_iter()
    .flat_map(|file| file.split("\n# %% ").skip(1).map(Attempt::parse))
}

pub(super) const PRELUDE: &str = include_str!("attempts/prelude.py");
