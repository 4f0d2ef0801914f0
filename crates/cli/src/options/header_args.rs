//! The options of `proxy` and `exec` for PROXY headers, the peers that send them, and the clients that they name.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use humantime::format_duration;
use peername_daemon::options::heading;
use peername_daemon::usage::UsageError;
use peername_daemon::value::{self, list_file};
use peername_proto::HeaderPolicy;
use peername_server::access::clients::{ClientAccess, RequiredTlv};
use peername_server::access::network_set::NetworkSet;
use peername_server::header_limits::HeaderLimits;

use super::clients;

/// Which peers may send headers, which headers are valid, and which clients may connect.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(next_help_heading = heading::HEADERS)]
#[group(skip)]
pub(crate) struct HeaderArgs {
    /// Peers that may send headers: CIDR, address, @FILE, private, loopback or any; may be repeated
    #[arg(short, long, value_name = "NETWORK")]
    trust: Vec<String>,
    #[command(flatten)]
    clients: clients::Args,
    /// Balancers whose health checks name themselves as the client, and need neither --allow-client nor --require-tlv: CIDR,
    /// address, @FILE, private, loopback or any; may be repeated [default: those on this host]
    #[arg(long, value_name = "NETWORK")]
    health_checks_from: Vec<String>,
    /// A TLV that headers must have: NAME=VALUE, or 0xNN=HEX; values of one name are alternatives; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) require_tlv: Vec<RequiredTlv>,
    /// The time from accept to the complete header
    #[arg(long, value_name = "DURATION", default_value = DEFAULT_TIMEOUT.as_str(), value_parser = value::timeout)]
    pub(crate) header_timeout: Duration,
    /// Refuse headers that are unambiguous, but not as the specification has them: families that differ, a space before
    /// CRLF, source port 0
    #[arg(long, hide_short_help = true)]
    strict_header: bool,
    /// Headers without a client (LOCAL, UNKNOWN), as health checks have them
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "serve",
        hide_short_help = true
    )]
    without_client: WithoutClient,
    /// Maximum length of a header in bytes
    #[arg(long, value_name = "BYTES", default_value_t = HeaderLimits::default().max_len, value_parser = value::number(16, 65_551), help_heading = heading::TUNING)]
    pub(crate) max_header: usize,
}

static DEFAULT_TIMEOUT: LazyLock<String> =
    LazyLock::new(|| format_duration(HeaderLimits::default().timeout).to_string());

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum WithoutClient {
    /// Serve them, from an address of this host
    Serve,
    /// Refuse them
    Refuse,
}

impl HeaderArgs {
    /// Which peers may send headers. Reads the files that the option names.
    pub(crate) fn trust(&self) -> Result<NetworkSet, UsageError> {
        clients::read_networks("--trust", &self.trust)
    }

    /// The files of `--trust`, whose change takes a reload. Files of client lists are left out: their change takes none.
    pub(crate) fn trust_files(&self) -> impl Iterator<Item = &Path> {
        self.trust.iter().filter_map(|word| list_file(word))
    }

    /// Which clients may connect. Reads the files that the options name, after `resolve` has mapped each value.
    pub(crate) fn access(
        &self,
        resolve: fn(&str) -> String,
    ) -> Result<Arc<ClientAccess>, UsageError> {
        let required_tlvs = self.require_tlv.iter().cloned().collect();
        self.clients
            .access(&self.health_checks_from, required_tlvs, resolve)
    }

    /// Which valid headers are accepted.
    pub(crate) fn policy(&self) -> HeaderPolicy {
        HeaderPolicy {
            strict: self.strict_header,
            require_client: self.without_client == WithoutClient::Refuse,
        }
    }

    /// The ids of the options that list networks.
    pub(crate) const NETWORK_IDS: [&str; 4] =
        ["trust", "allow_client", "deny_client", "health_checks_from"];
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;

    #[test]
    fn network_ids_are_those_of_all_options_that_list_networks() {
        let command = HeaderArgs::augment_args(Command::new("peername"));
        let lists = command.get_arguments().filter(|arg| {
            arg.get_value_names()
                .is_some_and(|names| names == ["NETWORK"])
        });
        let ids: Vec<_> = lists.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(ids, HeaderArgs::NETWORK_IDS);
    }
}
