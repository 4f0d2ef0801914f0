//! The options that decide on destinations in headers.

use peername_daemon::usage::UsageError;
use peername_proxy::policy::destination::DestinationPolicy;
use peername_server::destination_list::AllowedDestination;

/// The policy for destinations in headers; `None` if every client is connected to the fixed targets.
pub(super) fn destination_policy(
    dynamic: bool,
    allowed: &[AllowedDestination],
) -> Result<Option<DestinationPolicy>, UsageError> {
    match (dynamic, allowed) {
        (false, []) => Ok(None),
        (false, _) => Err(UsageError(LIST_WITHOUT_DYNAMIC.to_owned())),
        (true, _) => DestinationPolicy::new(allowed.iter().cloned().collect())
            .map(Some)
            .ok_or_else(|| UsageError(DYNAMIC_WITHOUT_LIST.to_owned())),
    }
}

const DYNAMIC_WITHOUT_LIST: &str = "--dynamic-destination: list the destinations that headers may name, such as \
    --allow-destination 127.0.0.1:8000-8999 or --allow-destination 10.0.0.0/8:443";
const LIST_WITHOUT_DYNAMIC: &str =
    "--allow-destination is a list for --dynamic-destination, which is not given";
