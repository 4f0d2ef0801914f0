//! Liveness and readiness of `peername intercept`, for the admin endpoint.

use std::sync::Arc;

use peername_observe::admin::Health;
use peername_server::workers::liveness::Liveness;

use crate::state::InterceptState;

/// Liveness of the workers, and whether clients should be sent here.
pub struct InterceptHealth {
    state: Arc<InterceptState>,
    liveness: Liveness,
}

impl InterceptHealth {
    /// The health of a running command.
    pub fn new(state: Arc<InterceptState>, liveness: Liveness) -> Self {
        Self { state, liveness }
    }
}

impl Health for InterceptHealth {
    async fn check_liveness(&self) {
        self.liveness.check().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.state.is_draining() {
            return Err("draining".to_owned());
        }
        let probed = self.state.probe_check().await;
        probed.map_err(|why| format!("the check service can't be asked: {why}"))
    }
}
