//! One upgrade, from the request to its outcome.

use super::successor::Upgrader;
use crate::admin::RunningAdmin;
use crate::handover::{ProcessState, SharedSocket};
use crate::listeners::running::RunningListeners;
use crate::process::Process;
use crate::service_manager;
use crate::signals::Signals;
use crate::signals::drain::Ending;
use crate::usage::error_text::with_causes;

/// What a running command needs to be upgraded, beside its listeners.
#[derive(Debug)]
pub struct Upgrades {
    /// Starts the new process.
    pub upgrader: Upgrader,
    /// The admin endpoint, whose sockets are handed over.
    pub admin: RunningAdmin,
}

impl Upgrades {
    /// Starts the new process, and hands over once it is ready. Logs the outcome, and reports it to `peername upgrade`. Returns how
    /// this process ends: replaced, or stopped by a signal meanwhile; `None` if it goes on.
    /// The new process continues `state`; `process` are this one's options, and `summary` says what it serves.
    pub async fn upgrade(
        &mut self,
        listeners: &mut RunningListeners,
        signals: &mut Signals,
        state: &ProcessState,
        process: &Process,
        summary: &str,
    ) -> anyhow::Result<Option<Ending>> {
        signals.upgrades.begin();
        service_manager::reloading();
        let upgraded = self.try_upgrade(listeners, signals, state, process);
        let Some(upgraded) = upgraded.await? else {
            return Ok(Some(Ending::Stopped));
        };
        let upgraded = upgraded.map_err(|error| with_causes(&error));
        match &upgraded {
            Ok(pid) => tracing::info!(pid, "upgraded: the new process serves"),
            Err(error) => {
                tracing::warn!("upgrade refused, nothing was changed: {error}");
                service_manager::ready(&format!("last upgrade refused ({error}); {summary}"));
            }
        }
        signals.upgrades.end(&upgraded);
        let Err(reason) = upgraded else {
            return Ok(Some(Ending::Replaced));
        };
        state.history.add_refused_upgrade(reason);
        Ok(None)
    }

    /// Returns the new process's id, or why there is none; `None` if a signal has asked to stop.
    async fn try_upgrade(
        &mut self,
        listeners: &mut RunningListeners,
        signals: &mut Signals,
        state: &ProcessState,
        process: &Process,
    ) -> anyhow::Result<Option<anyhow::Result<u32>>> {
        let sockets = match self.share_sockets(listeners).await {
            Ok(sockets) => sockets,
            Err(error) => return Ok(Some(Err(error))),
        };
        let start = self
            .upgrader
            .start_successor(sockets, process.upgrade_timeout);
        let started = signals
            .run_until_stopped(&mut listeners.workers, start)
            .await?;
        let successor = match started {
            Some(Ok(successor)) => successor,
            Some(Err(error)) => return Ok(Some(Err(error))),
            None => return Ok(None),
        };
        let (pid, adopted) = (successor.pid, successor.adopted.clone());
        let frozen = match successor.session_channel() {
            Ok(channel) => listeners.freeze(&adopted, &channel).await,
            Err(error) => Err(error),
        };
        let frozen = match frozen {
            Ok(frozen) => frozen,
            Err(error) => {
                let error = self.upgrader.abandon(successor, error).await;
                return Ok(Some(Err(error)));
            }
        };
        let inheritance = state.inheritance(process.logging);
        // Dropping `frozen` lets the workers go on, after the new process has ended.
        let released = match self.upgrader.release(successor, inheritance).await {
            Ok(released) => released,
            Err(error) => return Ok(Some(Err(error))),
        };
        self.admin.leave(&adopted);
        // This process reads nothing any more.
        let must_reload = signals.take_reload().await;
        released.serve(state.hand_over(process.logging, must_reload));
        frozen.hand_over();
        listeners.leave_backlogs(&adopted).await;
        Ok(Some(Ok(pid)))
    }

    async fn share_sockets(
        &self,
        listeners: &RunningListeners,
    ) -> anyhow::Result<Vec<SharedSocket>> {
        let mut all = listeners.share().await?;
        all.extend(self.admin.share()?);
        Ok(all)
    }
}
