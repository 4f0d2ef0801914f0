//! Liveness and readiness of `peername intercept`, for the admin endpoint.

pub mod code_advice;

use peername_observe::admin::Health;
use peername_server::workers::liveness::Liveness;
use peername_server::workers::phases::Phases;

use crate::listener::CurrentState;

/// Liveness of the workers, and readiness for new clients.
pub struct InterceptHealth {
    state: CurrentState,
    liveness: Liveness,
    phases: Phases,
}

impl InterceptHealth {
    /// Creates the health of a running command.
    pub fn new(state: CurrentState, liveness: Liveness, phases: Phases) -> Self {
        Self {
            state,
            liveness,
            phases,
        }
    }
}

impl Health for InterceptHealth {
    async fn check_liveness(&self) {
        self.liveness.check().await;
    }

    async fn check_readiness(&self) -> Result<(), String> {
        if self.phases.is_drain_announced() {
            return Err("draining".to_owned());
        }
        self.state
            .get()
            .probe_check()
            .await
            .map_err(|error| format!("the check service can't be asked: {error}"))
    }

    fn is_draining(&self) -> bool {
        self.phases.is_draining()
    }
}
