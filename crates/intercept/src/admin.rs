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
        let state = self.state.get();
        if state.fails_open() {
            return Ok(());
        }
        let probed = state.probe_check().await;
        probed.map_err(|error| format!("the check service can't be asked: {error}"))
    }

    async fn warning(&self) -> Option<String> {
        let state = self.state.get();
        if !state.fails_open() {
            return None;
        }
        let error = state.probe_check().await.err()?;
        Some(format!(
            "but the check service can't be asked, and requests go on unchecked: {error}"
        ))
    }

    fn is_draining(&self) -> bool {
        self.phases.is_draining()
    }
}
