//! The value of an option that is a timeout for some hosts.

use std::str::FromStr;

use peername_intercept::policy::host_timeouts::{HostTimeout, HostTimeouts};

use peername_daemon::value::timeout;

/// `HOST=DURATION`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostTimeoutArg(HostTimeout);

impl FromStr for HostTimeoutArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (hosts, limit) = text
            .split_once('=')
            .ok_or("use HOST=DURATION: example.com=2m, *.example.com=1h")?;
        let hosts = hosts.parse().map_err(|error| format!("{error}"))?;
        let limit = timeout(limit)?;
        Ok(Self(HostTimeout { hosts, limit }))
    }
}

/// The list of an option.
pub(super) fn host_timeouts(args: &[HostTimeoutArg]) -> HostTimeouts {
    HostTimeouts::new(args.iter().map(|arg| arg.0.clone()).collect())
}
