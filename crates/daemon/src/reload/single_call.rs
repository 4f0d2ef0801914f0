//! Calls that a file system or a name server may hang, one at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Makes blocking calls, of which one is in flight at a time: a call that hangs keeps its thread, and those of the control side
/// are limited.
#[derive(Debug)]
pub struct SingleCall(Arc<Semaphore>);

impl Default for SingleCall {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl SingleCall {
    /// Makes the call, on a thread that does not block signals, once the call before has ended. If this future is dropped
    /// before, a call that has begun goes on.
    ///
    /// # Errors
    ///
    /// The call has panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        // The semaphore is never closed.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok();
        let call = move || {
            let _permit = permit;
            call()
        };
        spawn_blocking(call).await
    }

    /// Whether a call is in flight.
    pub fn is_running(&self) -> bool {
        self.0.available_permits() == 0
    }
}
