//! The options on a server's listeners: which expect headers, and which headers. `exec` and `agent` have them.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::absolute;
use std::rc::Rc;

use peername_daemon::options::{Given, heading};
use peername_daemon::usage::UsageError;
use peername_daemon::value;
use peername_exec::client_judge::ClientJudge;
use peername_exec::table::TableRules;
use peername_identity::{Network, Settings, SocketListing, SourcePolicy};

use super::clients::ListJudge;
use crate::options::header_args::HeaderArgs;
use crate::options::source_policy;

/// Which listeners expect headers, and which headers.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::LISTENING)]
#[group(skip)]
pub(crate) struct ListenerPolicyArgs {
    /// Only listeners on these ports, such as 80,443,8000-8010 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = value::ports)]
    pub(super) ports: Vec<RangeInclusive<u16>>,
    #[command(flatten)]
    pub(super) headers: HeaderArgs,
    /// Treatment of connections without a header, and of those from untrusted peers
    #[arg(long, value_name = "WHAT", default_value = "require", help_heading = heading::HEADERS)]
    pub(super) header: HeaderRequirement,
    /// Which client addresses in headers are refused
    #[arg(
        long,
        value_name = "POLICY",
        default_value = SourcePolicy::Strict.name(),
        value_parser = source_policy::parser(&EXCLUDED_POLICIES),
        hide_short_help = true,
        help_heading = heading::HEADERS
    )]
    pub(super) source_policy: SourcePolicy,
    /// Connections that may be open at the same time, rounded up to a power of two, at least 64
    #[arg(
        long,
        value_name = "N",
        default_value_t = 65536,
        value_parser = clap::value_parser!(u32).range(1..=16_777_216),
        help_heading = heading::TUNING
    )]
    max_connections: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum HeaderRequirement {
    /// Refuse them
    Require,
    /// Pass them through unchanged
    Optional,
}

impl ListenerPolicyArgs {
    /// Whether listeners on this port expect headers.
    pub(super) fn covers(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.iter().any(|ports| ports.contains(&port))
    }

    /// The judge of clients; `None` if every client may connect. Reads the files of the lists.
    pub(crate) fn client_judge(&self) -> Result<Option<Rc<dyn ClientJudge>>, UsageError> {
        // The supervisor reads the files again in another working directory.
        let access = self.headers.access(with_absolute_path)?;
        Ok(ListJudge::for_access(access))
    }

    /// The rules for the table of clients. Reads the files of `--trust`.
    pub(crate) fn table_rules(&self, judged_by_waiter: bool) -> Result<TableRules, UsageError> {
        let trust = self.headers.trust()?;
        let (count, max) = (trust.iter().count(), Settings::MAX_NETWORKS);
        if count > max {
            return Err(UsageError(format!(
                "--trust lists {count} networks, more than the {max} that fit; join neighbouring ones"
            )));
        }
        Ok(TableRules {
            judged_by_waiter,
            networks: trust
                .iter()
                .filter_map(|network| Network::new(network.addr(), network.prefix_len()))
                .collect(),
            ports: self.ports.iter().cloned().flatten().collect(),
            header_required: self.header == HeaderRequirement::Require,
            show_destination: false,
            headers: self.headers.policy(),
            sources: self.source_policy,
            max_header: self.headers.max_header,
            listing: SocketListing::default(),
        })
    }

    /// The number of slots of the table of clients.
    pub(crate) fn slots(&self) -> usize {
        (self.max_connections as usize)
            .next_power_of_two()
            .max(MIN_SLOTS)
    }
}

/// The words of all options but those with the ids `left_out`, for a process with another working directory. The options that
/// list networks come first, with absolute paths of their files.
pub(super) fn words_with_absolute_paths<T: clap::Args>(
    given: &Given<T>,
    left_out: &[&str],
) -> Vec<OsString> {
    let lists = HeaderArgs::NETWORK_IDS
        .iter()
        .flat_map(|id| given.words_of(id))
        .map(|word| match word.to_string_lossy().split_once('=') {
            Some((option, value)) => format!("{option}={}", with_absolute_path(value)).into(),
            None => word.clone(),
        });
    let left_out = [left_out, HeaderArgs::NETWORK_IDS.as_slice()].concat();
    let others = given.words_except(&left_out).cloned();
    lists.chain(others).collect()
}

/// The value of an option, with an absolute path if the value names a file.
fn with_absolute_path(value: &str) -> String {
    match value.strip_prefix('@').map(absolute) {
        Some(Ok(path)) => format!("@{}", path.display()),
        // An empty path is reported when the file is read.
        Some(Err(_)) | None => value.to_owned(),
    }
}

/// The minimum number of slots of a table.
const MIN_SLOTS: usize = 64;
/// The source policies that are no options: on an IPv4 socket, an address of 240.0.0.0/4 stands for an IPv6 client.
const EXCLUDED_POLICIES: [SourcePolicy; 2] = [SourcePolicy::AllowReserved, SourcePolicy::Any];

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn reserved_addresses_are_never_allowed() {
        for policy in SourcePolicy::ALL {
            let command = ListenerPolicyArgs::augment_args(Command::new("exec"));
            let word = format!("--source-policy={}", policy.name());
            let is_accepted = command.try_get_matches_from(["exec", &word]).is_ok();
            let is_safe = [SourcePolicy::Strict, SourcePolicy::AllowLocal].contains(&policy);
            assert_eq!(is_accepted, is_safe, "{word}");
        }
    }
}
