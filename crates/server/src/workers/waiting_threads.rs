//! The threads of workers while there is nothing to serve yet. They run before a process takes over from another one, because
//! nothing may fail after that.

use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;

use crate::threads::spawn_with_runtime;

/// Threads that wait for the work of [`start`](super::start). They end if this is dropped.
pub struct WorkerThreads(pub(super) Vec<WaitingThread>);

/// A thread that has its runtime, and waits for its work.
pub(super) struct WaitingThread {
    thread: JoinHandle<io::Result<()>>,
    work: mpsc::Sender<Work>,
}

/// What the thread of a worker does with its runtime.
pub(super) type Work = Box<dyn FnOnce(Runtime) -> io::Result<()> + Send>;

impl WorkerThreads {
    /// Starts the threads of this many workers. Fails as [`spawn_with_runtime`] does.
    pub fn spawn(count: usize) -> io::Result<Self> {
        let threads: io::Result<_> = (0..count).map(WaitingThread::spawn).collect();
        threads.map(Self)
    }
}

impl WaitingThread {
    fn spawn(index: usize) -> io::Result<Self> {
        let (work, received) = mpsc::channel::<Work>();
        let name = format!("worker-{index}");
        let (_, thread) = spawn_with_runtime(name, move |runtime| match received.recv() {
            Ok(work) => work(runtime),
            Err(_) => Ok(()),
        })?;
        Ok(Self { thread, work })
    }

    /// Starts the work, and returns the thread.
    pub(super) fn start(self, work: Work) -> JoinHandle<io::Result<()>> {
        // The thread waits for it.
        let _ = self.work.send(work);
        self.thread
    }
}
