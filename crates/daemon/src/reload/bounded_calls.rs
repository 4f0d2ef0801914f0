//! Calls that a file system or a name server may hang.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::{JoinError, spawn_blocking};

/// Makes blocking calls, of which a limited number are in flight at a time: a call that hangs keeps its thread, and those of the
/// control side are limited.
#[derive(Debug)]
pub struct BoundedCalls(Arc<Semaphore>);

impl BoundedCalls {
    /// At most `limit` calls are in flight at a time.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Semaphore::new(limit)))
    }

    /// Makes the call, on a thread that does not block signals, once one of the calls before has ended if there are too many. If
    /// this future is dropped before, a call that has begun goes on.
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
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Otherwise the reloads of a watch would take all threads for blocking calls, and those for bans, too.
    #[tokio::test]
    async fn call_waits_while_as_many_as_allowed_hang() {
        let calls = BoundedCalls::new(2);
        let mut servers = Vec::new();
        for _ in 0..2 {
            calls.run(|| ()).await.unwrap();
            let (server, hung) = mpsc::channel::<()>();
            servers.push(server);
            let hangs = calls.run(move || hung.recv());
            assert!(timeout(SOON, hangs).await.is_err());
        }
        assert!(timeout(SOON, calls.run(|| ())).await.is_err());
        servers.pop();
        calls.run(|| ()).await.unwrap();
    }

    const SOON: Duration = Duration::from_millis(50);
}
