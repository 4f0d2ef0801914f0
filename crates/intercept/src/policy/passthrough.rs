//! Hosts whose TLS is passed through unopened (`--passthrough`).

use super::host_pattern::HostPattern;
use crate::host::Host;

/// The hosts whose TLS is passed through unopened.
#[derive(Clone, Debug, Default)]
pub struct Passthrough(Vec<HostPattern>);

impl Passthrough {
    /// Creates a list of these patterns.
    pub fn new(patterns: Vec<HostPattern>) -> Self {
        Self(patterns)
    }

    /// Whether this host's TLS is passed through.
    pub fn includes(&self, host: &Host) -> bool {
        self.0.iter().any(|pattern| pattern.includes(host))
    }
}
