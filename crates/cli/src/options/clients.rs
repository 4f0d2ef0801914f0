//! The options of `proxy`, `forward` and `exec` that list clients.

use std::sync::Arc;

use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_server::access::clients::{ClientAccess, ClientLists, ListOptions, RequiredTlvs};
use peername_server::access::network_set::{NetworkListError, NetworkSet};

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
    /// The policy of these options, in which the peers `health_checks` may name themselves as the client. Reads the files that
    /// the options name, after `resolve` has mapped each value.
    pub(crate) fn access(
        &self,
        health_checks: &[String],
        required_tlvs: RequiredTlvs,
        resolve: fn(&str) -> String,
    ) -> Result<Arc<ClientAccess>, UsageError> {
        let resolve_all = |values: &[String]| values.iter().map(|value| resolve(value)).collect();
        let options = ListOptions {
            allow: resolve_all(&self.allow_client),
            deny: resolve_all(&self.deny_client),
            health_checks: resolve_all(health_checks),
        };
        match ClientAccess::new(options.clone(), required_tlvs) {
            Ok(access) => Ok(Arc::new(access)),
            Err(first) => {
                let results = each_alone(&options).map(|value| ClientLists::read(&value));
                Err(list_errors(results, first))
            }
        }
    }
}

/// The values of the options, each without the others.
fn each_alone(options: &ListOptions) -> impl Iterator<Item = ListOptions> {
    let allow = options.allow.iter().map(|value| ListOptions {
        allow: vec![value.clone()],
        ..ListOptions::default()
    });
    let deny = options.deny.iter().map(|value| ListOptions {
        deny: vec![value.clone()],
        ..ListOptions::default()
    });
    let health_checks = options.health_checks.iter().map(|value| ListOptions {
        health_checks: vec![value.clone()],
        ..ListOptions::default()
    });
    allow.chain(deny).chain(health_checks)
}

/// Reads the networks of an option. The error has a line for each value that is not valid.
pub(crate) fn read_networks(
    option: &'static str,
    values: &[String],
) -> Result<NetworkSet, UsageError> {
    NetworkSet::read_required(option, values).map_err(|first| {
        let results = values
            .iter()
            .map(|value| NetworkSet::read_required(option, &[value]));
        list_errors(results, first)
    })
}

/// Collects the errors of values that were read one by one; `first` if they are invalid only together.
fn list_errors<T>(
    results: impl Iterator<Item = Result<T, NetworkListError>>,
    first: NetworkListError,
) -> UsageError {
    let mut errors = ErrorCollector::default();
    for result in results {
        errors.note(result.map_err(UsageError::from_error));
    }
    errors
        .into_result(None::<()>)
        .err()
        .filter(|UsageError(text)| !text.is_empty())
        .unwrap_or_else(|| UsageError::from_error(first))
}
