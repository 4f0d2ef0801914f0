//! Ends the program if the supervisor is killed: needed once a process of the program depends on the supervisor.

use peername_sys::Result;
use peername_sys::event::epoll::Epoll;

use super::inflight_calls::InflightCall;
use super::kill_switch::KillSwitch;
use super::supervised_process::SupervisedProcess;
use super::supervisor_monitor::SupervisorMonitor;

/// The supervisor's monitor, and the kernel's kill switch for the case that both are killed.
#[derive(Debug)]
pub(super) struct Failsafe {
    monitor: SupervisorMonitor,
    kill_switch: KillSwitch,
}

impl Failsafe {
    /// Starts the monitor. The supervisor learns of its exit through `epoll`.
    ///
    /// # Errors
    ///
    /// Those of fork(2), epoll_ctl(2), pipe(2) and fcntl(2).
    pub(super) fn start(supervised: &SupervisedProcess, epoll: &Epoll) -> Result<Self> {
        let mut kill_switch = KillSwitch::new(supervised)?;
        let monitor =
            SupervisorMonitor::start(supervised, kill_switch.new_inhibitor(supervised)?, epoll)?;
        Ok(Self {
            monitor,
            kill_switch,
        })
    }

    /// Replaces a monitor that has exited.
    ///
    /// # Errors
    ///
    /// As [`Failsafe::start`].
    pub(super) fn replace_monitor(
        &mut self,
        supervised: &SupervisedProcess,
        epoll: &Epoll,
    ) -> Result<()> {
        let inhibitor = self.kill_switch.new_inhibitor(supervised)?;
        self.monitor.replace(supervised, inhibitor, epoll)
    }

    /// Adds a process that depends on the supervisor for its accept(2).
    pub(super) fn note(&mut self, supervised: &SupervisedProcess, call: InflightCall) {
        self.kill_switch.note(supervised, call);
    }
}
