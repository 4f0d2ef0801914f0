//! The options that list clients. They are options of `proxy`, `forward` and `exec`.

use std::sync::Arc;

use peername_server::access::clients::{ClientAccess, ClientLists, ListOptions, RequiredTlvs};
use peername_server::access::network_set::NetworkListError;

use peername_daemon::usage::{Usage, UsageErrors};

/// Which clients may connect.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Clients that may connect [default: all]: CIDR, address, @FILE, private, loopback or any; may be repeated
    #[arg(long, value_name = "NETWORK")]
    allow_client: Vec<String>,
    /// Clients that may not connect (bans), even if they are allowed: as --allow-client. A file is read again when it changes
    #[arg(long, value_name = "NETWORK")]
    deny_client: Vec<String>,
}

impl Args {
    /// The policy by these options, and by the peers that may name themselves as the client. Reads the files that they name.
    ///
    /// # Errors
    ///
    /// One line for each invalid value or file.
    pub(crate) fn access(
        &self,
        health_checks: &[String],
        required_tlvs: RequiredTlvs,
    ) -> Result<Arc<ClientAccess>, Usage> {
        let options = ListOptions {
            allow: self.allow_client.clone(),
            deny: self.deny_client.clone(),
            health_checks: health_checks.to_vec(),
        };
        match ClientAccess::new(options.clone(), required_tlvs) {
            Ok(access) => Ok(Arc::new(access)),
            Err(first) => {
                let by_itself = each_by_itself(&options).map(|one| ClientLists::read(&one));
                Err(list_errors(by_itself, first))
            }
        }
    }
}

/// The values of the options, each without the others.
fn each_by_itself(options: &ListOptions) -> impl Iterator<Item = ListOptions> {
    let none = ListOptions::default;
    let allow = options.allow.iter().map(move |value| ListOptions {
        allow: vec![value.clone()],
        ..none()
    });
    let deny = options.deny.iter().map(move |value| ListOptions {
        deny: vec![value.clone()],
        ..none()
    });
    let health_checks = options.health_checks.iter().map(move |value| ListOptions {
        health_checks: vec![value.clone()],
        ..none()
    });
    allow.chain(deny).chain(health_checks)
}

/// The errors of the values of a list, each read by itself; `whole` if only all of them together are wrong.
pub(crate) fn list_errors<T>(
    by_itself: impl Iterator<Item = Result<T, NetworkListError>>,
    whole: NetworkListError,
) -> Usage {
    let mut errors = UsageErrors::default();
    for read in by_itself {
        errors.note(read.map_err(Usage::from_error));
    }
    errors
        .into_result(None::<()>)
        .err()
        .filter(|Usage(text)| !text.is_empty())
        .unwrap_or_else(|| Usage::from_error(whole))
}

impl Args {
    /// These options with other values.
    pub(crate) fn map_networks(&self, value: fn(&str) -> String) -> Self {
        let map = |values: &[String]| values.iter().map(|text| value(text)).collect();
        Self {
            allow_client: map(&self.allow_client),
            deny_client: map(&self.deny_client),
        }
    }

    /// These options as words of a command line.
    pub(crate) fn network_words(&self) -> impl Iterator<Item = String> {
        let allow = self.allow_client.iter();
        let allow = allow.map(|value| format!("--allow-client={value}"));
        let deny = self.deny_client.iter();
        allow.chain(deny.map(|value| format!("--deny-client={value}")))
    }
}
