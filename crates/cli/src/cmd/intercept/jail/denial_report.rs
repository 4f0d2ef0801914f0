//! What was denied in a jail: lines on standard error at its end, and the verdict for [`fail_on_deny`](super::fail_on_deny).

use std::path::PathBuf;

use peername_intercept::Remedy;
use peername_intercept::authz::rule_for;
use peername_intercept::denials::{Denials, DeniedDestination};
use peername_proto::special;
use peername_sys::process::stderr::try_write_line;

use super::options::Args;

/// How denials are reported.
#[derive(Clone, Debug)]
pub(super) struct DenialReport {
    /// The list of `--check-list`.
    check_list: Option<PathBuf>,
    is_quiet: bool,
}

impl DenialReport {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            check_list: args.check_list.clone(),
            // An exit code of its own needs a reason.
            is_quiet: args.logging.quiet && !args.fails_on_deny(),
        }
    }

    /// Writes the report. Returns whether anything was denied.
    pub(super) fn write(&self, denials: &Denials) -> bool {
        let (denied, others) = denials.list();
        if denied.is_empty() || self.is_quiet {
            return !denied.is_empty();
        }
        let mut lines = match &self.check_list {
            None => denied.iter().map(line_of).collect(),
            Some(path) => {
                let mut lines = vec![format!(
                    "peername: --check-list {}: what follows was denied, because the list does not have it",
                    path.display()
                )];
                lines.extend(denied.iter().map(added_line_of));
                lines
            }
        };
        let cut = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        if cut > 0 || others > 0 {
            lines.push(format!(
                "peername: denied: more than {MAX_LINES} destinations: --log FILE has all"
            ));
        }
        lines.iter().for_each(|line| try_write_line(line));
        true
    }
}

fn line_of(denied: &DeniedDestination) -> String {
    let DeniedDestination {
        to,
        count,
        remedy,
        reason,
    } = denied;
    let times = match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    };
    let outcome = match remedy {
        Some(option) => format!("{option} allows it"),
        None => reason.clone(),
    };
    format!("peername: denied: {to}, {times}: {outcome}")
}

/// A line that the list lacks, as in a unified diff.
fn added_line_of(denied: &DeniedDestination) -> String {
    let DeniedDestination {
        to, remedy, reason, ..
    } = denied;
    match remedy {
        // As in a learned list: the program has chosen the address, and a rule would open it.
        Some(Remedy::Allow(rule)) if to.host.as_ip().and_then(special).is_some() => {
            format!("+# {rule}")
        }
        Some(Remedy::Allow(rule)) => format!("+{rule}"),
        Some(option) => format!("+{} # needs {option}", rule_for(to)),
        None => format!("+{} # {reason}", rule_for(to)),
    }
}

/// Of the report: a program that scans ports is denied thousands.
const MAX_LINES: usize = 50;
