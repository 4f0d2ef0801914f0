//! Threads that are started so that a refusal of the system (EAGAIN by TasksMax=, pids.max or RLIMIT_NPROC) is an error of the
//! start, and ends nothing that serves already.
//!
//! tokio starts a runtime's threads for blocking calls when they are needed. It panics if the system refuses the first one; if
//! there is one, calls wait for it instead. So the first one is started with the process, and no such thread ends.

use std::io;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Starts a thread with a runtime of its own, which `run` gets. Returns once the runtime is built, with a handle of it.
///
/// # Errors
///
/// EAGAIN for the thread; EMFILE for the runtime.
pub fn spawn_with_runtime(
    name: String,
    run: impl FnOnce(Runtime) -> io::Result<()> + Send + 'static,
) -> io::Result<(Handle, thread::JoinHandle<io::Result<()>>)> {
    let (built, handle) = mpsc::channel();
    let thread =
        thread::Builder::new().name(name).spawn(move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _ = built.send(Ok(runtime.handle().clone()));
                    run(runtime)
                }
                Err(error) => {
                    let _ = built.send(Err(error));
                    Ok(())
                }
            }
        })?;
    let handle = handle.recv().map_err(io::Error::other)??;
    Ok((handle, thread))
}

/// Makes a runtime keep its threads for blocking calls, of which it starts `max_threads` at most.
pub fn keep_blocking_threads(builder: &mut Builder, max_threads: usize) -> &mut Builder {
    builder
        .max_blocking_threads(max_threads)
        .thread_keep_alive(FOREVER)
}

/// Starts the first thread for blocking calls of a runtime that [keeps](keep_blocking_threads) it. Call it after the
/// confinement, which is that of each thread. Fails as [`check_free`] does.
pub fn start_first_blocking_thread(runtime: &Handle) -> io::Result<()> {
    check_free(2)?;
    runtime.spawn_blocking(|| ());
    Ok(())
}

/// Checks that this many threads can be started, by starting them. A crate may panic where it can't start one. Ask for one more
/// than it starts: a thread may count for a moment after it was joined.
///
/// # Errors
///
/// EAGAIN.
pub fn check_free(threads: usize) -> io::Result<()> {
    if threads == 0 {
        return Ok(());
    }
    let thread = thread::Builder::new().spawn(move || check_free(threads - 1))?;
    thread.join().unwrap_or(Ok(()))
}

/// Starts the first of the threads that all workers share for the blocking calls of requests, such as lookups. Call it once,
/// after the confinement, which is that of each thread. Fails as [`check_free`] does.
pub fn start_request_threads() -> io::Result<()> {
    // Before the runtime is built: dropping it after an error would panic in the async context of the callers.
    check_free(2)?;
    let runtime =
        keep_blocking_threads(&mut Builder::new_current_thread(), MAX_REQUEST_THREADS).build()?;
    runtime.spawn_blocking(|| ());
    let _ = REQUEST_THREADS.set(runtime);
    Ok(())
}

/// Makes a blocking call of a request on one of the threads that all workers share, or on one of the calling runtime if these
/// were not started.
pub fn spawn_request_call<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    match REQUEST_THREADS.get() {
        Some(threads) => threads.spawn_blocking(call),
        None => tokio::task::spawn_blocking(call),
    }
}

/// The maximum number of threads for the calls of requests. The old and the new process of an upgrade have so many each: both,
/// with a worker on each of a hundred cores, are within the units' `TasksMax=`.
pub const MAX_REQUEST_THREADS: usize = 256;

/// A runtime without a driver, of which only the threads for blocking calls are used.
static REQUEST_THREADS: OnceLock<Runtime> = OnceLock::new();
/// A century.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn call_of_a_worker() -> thread::ThreadId {
        let runtime = Builder::new_current_thread().build().unwrap();
        let call = async { spawn_request_call(|| thread::current().id()).await };
        runtime.block_on(call).unwrap()
    }

    #[test]
    fn workers_share_the_threads_for_calls_of_requests() {
        start_request_threads().unwrap();
        // A thread that has just answered may not be idle yet, and then another one is started.
        let ids: HashSet<_> = (0..50).map(|_| call_of_a_worker()).collect();
        assert!(ids.len() < 50, "{ids:?}");
    }

    /// A call that takes so long that the other calls need threads of their own.
    fn busy_call() -> thread::ThreadId {
        thread::sleep(Duration::from_millis(20));
        thread::current().id()
    }

    #[test]
    fn at_most_as_many_blocking_threads_as_allowed_are_started() {
        let mut builder = Builder::new_current_thread();
        let runtime = keep_blocking_threads(&mut builder, 2).build().unwrap();
        start_first_blocking_thread(runtime.handle()).unwrap();
        let calls: Vec<_> = (0..5).map(|_| runtime.spawn_blocking(busy_call)).collect();
        let ids = runtime.block_on(async {
            let mut ids = HashSet::new();
            for call in calls {
                ids.insert(call.await.unwrap());
            }
            ids
        });
        assert!((1..=2).contains(&ids.len()), "{ids:?}");
    }
}
