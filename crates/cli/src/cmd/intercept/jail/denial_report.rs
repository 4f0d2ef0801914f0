//! What was denied in a jail: lines on standard error at its end, and the verdict for [`fail_on_deny`](super::fail_on_deny).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use peername_intercept::Remedy;
use peername_intercept::authz::HTTP_PORTS;
use peername_intercept::authz::rule_for;
use peername_intercept::denials::{Denials, DeniedDestination};
use peername_intercept::failures::{FailedDestination, Failures};
use peername_intercept::host::HostPort;
use peername_proto::{Special, meanings, special};
use peername_sys::process::stderr::try_write_line;

use super::file_table::FileTable;
use super::learn::{NOT_PUBLIC, is_refused_anyway};
use super::options::Args;

/// How denials are reported.
#[derive(Clone, Debug)]
pub(super) struct DenialReport {
    /// The list of `--check-list`.
    check_list: Option<PathBuf>,
    /// Where what is missing can be added, beside the command line.
    table: Option<FileTable>,
    is_quiet: bool,
    /// What has a line.
    reported: BTreeSet<(HostPort, Option<Remedy>)>,
    /// The lines of the diff: two destinations may need the same.
    added: BTreeSet<String>,
}

impl DenialReport {
    pub(super) fn new(args: &Args) -> Self {
        Self {
            check_list: args.check_list.clone(),
            table: args.table.clone(),
            // An exit code of its own needs a reason.
            is_quiet: args.logging.quiet && !args.fails_on_deny(),
            reported: BTreeSet::new(),
            added: BTreeSet::new(),
        }
    }

    /// Writes the lines of destinations that have none so far. Returns whether anything was denied.
    pub(super) fn write(&mut self, denials: &Denials) -> bool {
        let (denied, _) = denials.list();
        if self.is_quiet {
            return !denied.is_empty();
        }
        for denied in &denied {
            let key = key_of(denied);
            if self.reported.len() == MAX_LINES || self.reported.contains(&key) {
                continue;
            }
            // What a rule denies, the list may have.
            match (&self.check_list, &denied.remedy) {
                (Some(list), Some(remedy)) => {
                    self.begin_diff(list);
                    let line = added_line_of(denied, remedy);
                    if self.added.insert(line.clone()) {
                        try_write_line(&line);
                    }
                }
                _ => try_write_line(&self.line_of(denied)),
            }
            self.reported.insert(key);
        }
        !denied.is_empty()
    }

    /// The same for the last time, with a line if there were more than have lines, and lines for at most [`MAX_LINES`] origins that
    /// could not be reached: a program may show no more of that than a status.
    pub(super) fn finish(mut self, denials: &Denials, failures: &Failures) -> bool {
        let is_anything_denied = self.write(denials);
        let (denied, others) = denials.list();
        let is_all_reported = denied
            .iter()
            .all(|denied| self.reported.contains(&key_of(denied)));
        let has_all = self.is_quiet || others == 0 && is_all_reported;
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
                .for_each(|failed| try_write_line(&failed_line_of(failed)));
        }
        // What has a line was denied, also where a server of the program came later.
        is_anything_denied || !self.reported.is_empty()
    }

    /// Writes what the lines that the list lacks mean, before the first.
    fn begin_diff(&self, list: &Path) {
        if self.reported.iter().all(|(_, remedy)| remedy.is_none()) {
            try_write_line(&format!(
                "peername: --check-list {}: what follows was denied, because the list does not have it",
                list.display()
            ));
        }
    }

    fn line_of(&self, denied: &DeniedDestination) -> String {
        let DeniedDestination {
            to,
            count,
            remedy,
            reason,
        } = denied;
        let times = times(*count);
        let outcome = match remedy {
            Some(remedy) => {
                let warning = match opens_metadata(to, remedy) {
                    true => " (a cloud's metadata service: it may hand out credentials)",
                    false => "",
                };
                let allowing = match &self.table {
                    Some(table) => table.place_of(remedy),
                    None => remedy.to_string(),
                };
                let of_private = match is_plain_name(to, remedy) {
                    true => format!("; for a private host: {to}"),
                    false => String::new(),
                };
                let opened = opening(to, remedy)
                    .map(|form| format!(" unopened; for HTTPS or a proxy: {form}"));
                let opened = opened.unwrap_or_default();
                format!("{allowing} allows it{opened}{warning}{of_private}")
            }
            None => reason.clone(),
        };
        format!("peername: denied: {to}, {times}: {outcome}")
    }
}

/// What has a line of its own.
fn key_of(denied: &DeniedDestination) -> (HostPort, Option<Remedy>) {
    (denied.to.clone(), denied.remedy.clone())
}

fn failed_line_of(failed: &FailedDestination) -> String {
    let FailedDestination { to, count, error } = failed;
    format!("peername: failed: {to}, {}: {error}", times(*count))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    }
}

/// What opens the port as TLS and HTTP, where the remedy relays its connections unopened, and they may be HTTP: those of a system
/// port (RFC 6335, section 6) other than HTTP's are not. Behind a proxy that is reached unopened every host is open.
fn opening(to: &HostPort, remedy: &Remedy) -> Option<String> {
    if to.port <= LAST_SYSTEM_PORT || HTTP_PORTS.contains(&to.port) {
        return None;
    }
    // `--port` opens no address that is not public.
    let is_public = !to.host.is_localhost() && !to.host.as_ip().is_some_and(is_refused_anyway);
    match remedy {
        // A rule for paths has its requests seen.
        Remedy::Allow(rule) if !rule.contains('/') => Some(format!("{rule}/")),
        Remedy::AllowTcp(_) if is_public => Some(Remedy::Port(to.port).to_string()),
        _ => None,
    }
}

/// Whether it is a name for plain HTTP, and the rule names no port: it opens no private address, and whether the name has one is
/// not looked up.
fn is_plain_name(to: &HostPort, remedy: &Remedy) -> bool {
    let is_by_host = matches!(remedy, Remedy::Allow(rule) if *rule == to.host.to_string());
    to.port == 80 && to.host.as_ip().is_none() && is_by_host
}

fn opens_metadata(to: &HostPort, remedy: &Remedy) -> bool {
    let opened = match remedy {
        Remedy::AllowDestination(addr) => Some(addr.ip()),
        _ => to.host.as_ip(),
    };
    opened.is_some_and(|ip| meanings(ip).any(|ip| special(ip) == Some(Special::Metadata)))
}

/// A line that the list lacks, as in a unified diff.
fn added_line_of(denied: &DeniedDestination, remedy: &Remedy) -> String {
    let to = &denied.to;
    match remedy {
        // As in a learned list: the program has chosen the address, and a rule would open it.
        Remedy::Allow(rule) if to.host.as_ip().is_some_and(is_refused_anyway) => {
            format!("+{NOT_PUBLIC}{rule}")
        }
        // With its port the rule also opens a private host, and one that is public no less.
        Remedy::Allow(_) if is_plain_name(to, remedy) => format!("+{to}"),
        Remedy::Allow(rule) => match opening(to, remedy) {
            Some(opened) => format!("+{rule} # unopened; for HTTPS or a proxy: {opened}"),
            None => format!("+{rule}"),
        },
        option => format!("+{} # needs {option}", rule_for(to)),
    }
}

/// Of the report: a program that scans ports is denied thousands.
const MAX_LINES: usize = 50;
const LAST_SYSTEM_PORT: u16 = 1023;
