//! What the admin endpoint answers for this command.

use std::sync::Arc;

use peername_observe::admin::Health;
use peername_server::liveness::Liveness;

use crate::state::Site;

/// Liveness of the workers, and whether clients should be sent here.
pub struct InterceptHealth {
    site: Arc<Site>,
    liveness: Liveness,
}

impl InterceptHealth {
    /// Of a running command.
    pub fn new(site: Arc<Site>, liveness: Liveness) -> Self {
        Self { site, liveness }
    }
}

impl Health for InterceptHealth {
    async fn check_liveness(&self) {
        self.liveness.check().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.site.is_draining() {
            return Err("draining".to_owned());
        }
        let can_ask = self.site.can_ask().await;
        can_ask.map_err(|why| format!("the check service can't be asked: {why}"))
    }
}
