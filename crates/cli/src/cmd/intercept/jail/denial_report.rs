//! The report of what a jail has denied: lines on standard error at its end, and the verdict for
//! [`fail_on_deny`](super::fail_on_deny).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peername_intercept::Remedy;
use peername_intercept::authz::HTTP_PORTS;
use peername_intercept::authz::rule_for;
use peername_intercept::denials::{DenialKey, Denials, DeniedDestination};
use peername_intercept::failures::{FailedDestination, Failures};
use peername_intercept::host::{Host, HostPort};
use peername_proto::{Special, meanings, special};
use peername_sys::process::stderr::try_write_line;

use super::file_table::FileTable;
use super::learn::{HTTPS_PORT, NOT_PUBLIC, is_own_address, is_private, is_refused_by_default};
use super::options::{Args, RELAYED_PORTS};

/// How denials are reported.
#[derive(Clone, Debug)]
pub(super) struct DenialReport {
    /// The list of `--check-list`.
    check_list: Option<PathBuf>,
    /// The table of a file, in which a missing rule or option can be added.
    table: Option<FileTable>,
    /// Whom to ask for a rule (`--contact`).
    contact: Option<String>,
    /// Whether a list is learned.
    is_learning: bool,
    is_quiet: bool,
    /// The denials that have a line.
    reported: BTreeSet<DenialKey>,
    /// The lines of the diff: two destinations may need the same.
    added: BTreeSet<String>,
}

impl DenialReport {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            check_list: args.check_list.clone(),
            table: args.table.clone(),
            contact: args.intercept().contact.clone(),
            is_learning: args.learn.is_some(),
            // With --fail-on-deny the reason of the exit code is printed even with --quiet.
            is_quiet: args.logging.quiet && !args.fails_on_deny(),
            reported: BTreeSet::new(),
            added: BTreeSet::new(),
        }
    }

    /// Writes a line for each denied destination that has none yet. Returns whether anything was denied.
    pub(super) fn write(&mut self, denials: &Denials) -> bool {
        let (denied, _) = denials.list();
        if self.is_quiet {
            return !denied.is_empty();
        }
        for denied in &denied {
            if self.reported.len() == MAX_LINES || self.reported.contains(&denied.key) {
                continue;
            }
            // Without a remedy, the list lacks nothing: one of its lines may be what denies.
            match (&self.check_list, &denied.key.remedy) {
                (Some(list), Some(remedy)) => {
                    if self.added.is_empty() {
                        begin_diff(list);
                    }
                    let line = diff_line(denied, remedy);
                    if self.added.insert(line.clone()) {
                        try_write_line(&line);
                    }
                }
                _ => try_write_line(&self.denial_line(denied)),
            }
            self.reported.insert(denied.key.clone());
        }
        !denied.is_empty()
    }

    /// Writes the lines that are left at the end: the remaining denials, a note if some have no line, and at most [`MAX_LINES`]
    /// origins that could not be reached, of which a program may show no more than a status. Returns whether anything was
    /// denied.
    pub(super) fn finish(mut self, denials: &Denials, failures: &Failures) -> bool {
        let has_denials = self.write(denials);
        let (denied, count_unlisted) = denials.list();
        let is_all_reported = denied
            .iter()
            .all(|denied| self.reported.contains(&denied.key));
        let has_all = self.is_quiet || count_unlisted == 0 && is_all_reported;
        if !has_all {
            try_write_line(&format!(
                "peername: denied: more than {MAX_LINES} destinations: --log FILE has all"
            ));
        }
        if !self.is_quiet {
            let (failed, _) = failures.list();
            failed
                .iter()
                .take(MAX_LINES)
                .for_each(|failed| try_write_line(&failure_line(failed)));
        }
        if let Some(contact) = &self.contact
            && !self.is_quiet
            && !self.reported.is_empty()
        {
            try_write_line(&format!("peername: {contact}"));
        }
        // A denial that has a line counts even if it was forgotten since, because a server of the program now listens on its
        // port.
        has_denials || !self.reported.is_empty()
    }

    fn denial_line(&self, denied: &DeniedDestination) -> String {
        let DeniedDestination {
            key: DenialKey { to, remedy, .. },
            count,
            reason,
        } = denied;
        let times = times(*count);
        let outcome = match remedy {
            Some(remedy) => {
                let remedy_text = self.describe(remedy);
                let opening_hint = opening_remedy(to, remedy)
                    .map(|form| format!(" unopened; for HTTPS or a proxy: {form}"))
                    .unwrap_or_default();
                let warning = if opens_metadata(to, remedy) {
                    " (a cloud's metadata service: it may hand out credentials)".to_owned()
                } else if self.is_learning && is_learned_name(to, remedy) {
                    " while it is learned; the list has it now".to_owned()
                } else if remedy.caution().is_empty() {
                    String::new()
                } else {
                    format!(" ({})", remedy.caution())
                };
                format!("{remedy_text} allows it{opening_hint}{warning}")
            }
            None => reason.clone(),
        };
        format!("peername: denied: {to}, {times}: {outcome}")
    }

    /// The remedy as the user writes it: in the file, or on the command line.
    fn describe(&self, remedy: &Remedy) -> String {
        match &self.table {
            Some(table) => table.describe_remedy(remedy),
            None => remedy.to_string(),
        }
    }
}

/// Says that connections may have been denied that are not counted.
pub(super) fn write_unknown_denials(cause: &str) {
    try_write_line(&format!(
        "peername: denied: maybe further connections, which are not known: {cause}"
    ));
}

/// Explains the lines of the diff, before the first of them.
fn begin_diff(list: &Path) {
    try_write_line(&format!(
        "peername: --check-list {}: what follows was denied, because the list does not have it",
        list.display()
    ));
}

fn failure_line(failed: &FailedDestination) -> String {
    let FailedDestination { to, count, error } = failed;
    format!("peername: failed: {to}, {}: {error}", times(*count))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// The rule or option that opens connections to the port as TLS and HTTP, if the remedy relays them unopened. The report names
/// it because the destination may be a proxy, through which unopened connections reach every host. `None` for HTTP's own ports,
/// and for system ports (RFC 6335, section 6) and [`RELAYED_PORTS`], which are not used for HTTP.
fn opening_remedy(to: &HostPort, remedy: &Remedy) -> Option<String> {
    if to.port <= LAST_SYSTEM_PORT
        || HTTP_PORTS.contains(&to.port)
        || RELAYED_PORTS.contains(&to.port)
    {
        return None;
    }
    match remedy {
        // A rule with a path or methods opens the port: only requests have them.
        Remedy::Allow(rule) if !rule.contains(['/', ' ']) => Some(format!("{rule}/")),
        // `--port` opens no address that is not public.
        Remedy::AllowTcp(_) if may_be_public(&to.host) => Some(Remedy::Port(to.port).to_string()),
        _ => None,
    }
}

/// Whether the host is not known to be private: a public address, or a name other than `localhost`.
fn may_be_public(host: &Host) -> bool {
    !host.is_localhost() && !host.as_ip().is_some_and(is_refused_by_default)
}

/// Whether `--learn` has listed this name although its address was refused: at 443 a certificate proves the name, so that the
/// rule opens a private address that is not this host's.
fn is_learned_name(to: &HostPort, remedy: &Remedy) -> bool {
    matches!(remedy, Remedy::AllowDestination(addr)
        if to.port == HTTPS_PORT && to.host.as_ip().is_none() && meanings(addr.ip()).all(is_private) && !is_own_address(addr.ip()))
}

fn opens_metadata(to: &HostPort, remedy: &Remedy) -> bool {
    let opened = match remedy {
        Remedy::AllowDestination(addr) => Some(addr.ip()),
        _ => to.host.as_ip(),
    };
    opened.is_some_and(|ip| meanings(ip).any(|ip| special(ip) == Some(Special::Metadata)))
}

/// The line that the list lacks, as a line of a unified diff.
fn diff_line(denied: &DeniedDestination, remedy: &Remedy) -> String {
    let to = &denied.key.to;
    match remedy {
        // A comment, as in a learned list: the program has chosen the address, and a rule would open it.
        Remedy::Allow(rule) if !may_be_public(&to.host) => format!("+{NOT_PUBLIC}{rule}"),
        Remedy::Allow(rule) => match opening_remedy(to, remedy) {
            Some(opened) => format!("+{rule} # unopened; for HTTPS or a proxy: {opened}"),
            None if remedy.caution().is_empty() => format!("+{rule}"),
            None => format!("+{rule} # {}", remedy.caution()),
        },
        // The list allows the request, and no rule of it would open the address.
        Remedy::AllowDestination(_) | Remedy::AllowLoopback(_) => format!("+# {to} needs {remedy}"),
        option => format!("+{} # needs {option}", rule_for(to)),
    }
}

/// Lines of the report: a program that scans ports has thousands of denials.
const MAX_LINES: usize = 50;
const LAST_SYSTEM_PORT: u16 = 1023;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_that_may_be_of_http_have_a_rule_that_opens_them() {
        for (to, expected) in [
            ("a.test:9999", Some("a.test:9999/")),
            ("a.test:5432", None),
            ("a.test:27017", None),
            ("a.test:22", None),
            ("a.test:389", None),
            ("a.test:8080", None),
        ] {
            let remedy = Remedy::Allow(to.into());
            let opened = opening_remedy(&HostPort::parse(to).unwrap(), &remedy);
            assert_eq!(opened.as_deref(), expected, "{to}");
        }
    }
}
