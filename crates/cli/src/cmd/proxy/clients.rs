//! The options that list clients. They are options of `proxy`, `forward` and `exec`.

use std::sync::Arc;

use peername_server::access::clients::{ClientAccess, RequiredTlvs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// Which clients may connect.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize, JsonSchema)]
#[group(skip)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Args {
    /// Clients that may connect [default: all]: CIDR, address, @FILE, private, loopback or any; may be repeated
    #[arg(long, value_name = "NETWORK")]
    allow_client: Vec<String>,
    /// Clients that may not connect, even if they are allowed: as --allow-client. A file is read again when it changes
    #[arg(long, value_name = "NETWORK")]
    deny_client: Vec<String>,
}

impl Args {
    /// The policy by these options. Reads the files that they name.
    ///
    /// # Errors
    ///
    /// A value, a file, or a line of a file is invalid.
    pub(crate) fn access(&self, required_tlvs: RequiredTlvs) -> Result<Arc<ClientAccess>, Usage> {
        let (allow, deny) = (self.allow_client.clone(), self.deny_client.clone());
        let access = ClientAccess::new(allow, deny, required_tlvs);
        access.map(Arc::new).map_err(Usage::from_error)
    }
}
