//! Holders in threads of this process, and agents that connect to them.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use tempfile::tempdir;

use super::*;

/// A thread that runs [`hold`].
struct HolderThread(JoinHandle<Result<(), HolderError>>);

impl HolderThread {
    fn start(shared: &Path, own: &Path) -> Self {
        let (shared, own) = (shared.to_owned(), own.to_owned());
        Self(thread::spawn(move || hold(&shared, &own)))
    }

    /// Starts a holder, which keeps a descriptor of an agent that has exited.
    fn start_with_descriptor(shared: &Path, own: &Path) -> Self {
        let holder = Self::start(shared, own);
        let mut agent = holder.wait_opened(own).connection;
        let null = File::open("/dev/null").unwrap();
        agent.put(StoredName::Socket, null.as_fd()).unwrap();
        holder
    }

    /// Connects once the holder listens at `path`, and does not wait for the descriptors.
    fn wait_connected(&self, path: &Path) -> OwnedFd {
        self.wait_value(|| match seqpacket::connect_to(path) {
            Ok(connection) => Some(connection),
            Err(error) => {
                assert!(is_absent(&error), "{error}");
                None
            }
        })
    }

    /// Connects once the holder listens at `path`, as an agent does.
    fn wait_opened(&self, path: &Path) -> OpenedHolder {
        self.wait_value(|| HolderConnection::connect(path).unwrap())
    }

    /// Polls until there is a value. Panics once the holder has ended.
    fn wait_value<T>(&self, poll: impl Fn() -> Option<T>) -> T {
        wait_for(|| {
            let value = poll();
            assert!(
                value.is_some() || !self.0.is_finished(),
                "the holder has ended"
            );
            value
        })
    }

    /// Waits until the holder has ended.
    fn wait_end(self) -> Result<(), HolderError> {
        wait_for(|| self.0.is_finished().then_some(()));
        self.0.join().unwrap()
    }

    /// Connects to the holder at `path`, and ends it as another holder does.
    fn retire(self, path: &Path) {
        let last = self.wait_opened(path);
        send(&last.connection.0, RETIRE, None).unwrap();
        self.wait_end().unwrap();
    }
}

/// The next agents are served, and the holder does not take over from itself.
#[test]
fn first_agent_may_exit_before_it_has_the_descriptors() {
    let dir = tempdir().unwrap();
    let [shared, previous_own, own] =
        ["shared", "previous", "own"].map(|name| dir.path().join(name));
    let previous = HolderThread::start_with_descriptor(&shared, &previous_own);
    let holder = HolderThread::start(&shared, &own);
    drop(holder.wait_connected(&own));
    previous.wait_end().unwrap();
    for path in [&own, &shared] {
        let next = holder.wait_opened(path);
        assert_eq!(names(&next), [StoredName::Socket]);
    }
    holder.retire(&own);
}

/// bind(2) does not replace the symbolic link, which connect(2) follows.
#[test]
fn holder_keeps_its_descriptors_if_the_next_one_can_not_listen() {
    let dir = tempdir().unwrap();
    let [shared, link, own, next_own] =
        ["shared", "link", "own", "next"].map(|name| dir.path().join(name));
    let holder = HolderThread::start_with_descriptor(&shared, &own);
    symlink(&shared, &link).unwrap();
    let next = HolderThread::start(&link, &next_own);
    let _agent = next.wait_connected(&next_own);
    let failed = next.wait_end();
    assert!(
        matches!(&failed, Err(HolderError::Call { path, .. }) if *path == link),
        "{failed:?}"
    );
    let kept = holder.wait_opened(&shared);
    assert_eq!(names(&kept), [StoredName::Socket]);
    drop(kept);
    holder.retire(&own);
}

/// The kernel discards a descriptor that the receiver has no room for, and delivers the text.
#[test]
fn agent_does_not_start_without_one_of_the_descriptors() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("holder");
    let listener = seqpacket::listen_at(&path).unwrap();
    let holder = thread::spawn(move || {
        let agent = seqpacket::accept_from(&listener).unwrap();
        send(&agent, "put socket", None).unwrap();
    });
    let failed = HolderConnection::connect(&path);
    assert!(
        matches!(
            &failed,
            Err(HolderError::NoRoom {
                name: StoredName::Socket,
                ..
            })
        ),
        "{failed:?}"
    );
    holder.join().unwrap();
}

/// Polls until there is a value. Panics after [`WAIT_LIMIT`].
fn wait_for<T>(poll: impl Fn() -> Option<T>) -> T {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "not within {WAIT_LIMIT:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn names(opened: &OpenedHolder) -> Vec<StoredName> {
    opened.stored.iter().map(|stored| stored.name).collect()
}

const WAIT_LIMIT: Duration = Duration::from_secs(10);
