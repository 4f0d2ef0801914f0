//! The options of `peername proxy` that let the header say where to connect.

use peername_proxy::destination::{Allowed, Destinations};

use crate::usage::Usage;

/// Which destinations a header may name.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    /// Connect to the destination in the header, if --allow-destination lists it
    #[arg(long)]
    dynamic_destination: bool,
    /// A destination that headers may name: CIDR[:PORT[-PORT]]; may be repeated
    #[arg(long, value_name = "WHERE", requires = "dynamic_destination")]
    allow_destination: Vec<Allowed>,
}

impl Args {
    /// `None` when every client goes to the fixed targets.
    pub(super) fn config(&self) -> Result<Option<Destinations>, Usage> {
        if !self.dynamic_destination {
            return Ok(None);
        }
        let destinations = Destinations::new(self.allow_destination.clone());
        destinations.map(Some).ok_or_else(|| Usage(NONE.to_owned()))
    }
}

const NONE: &str = "--dynamic-destination: say which destinations headers may name, such as \
    --allow-destination 127.0.0.1:8000-8999 or --allow-destination 10.0.0.0/8:443";
