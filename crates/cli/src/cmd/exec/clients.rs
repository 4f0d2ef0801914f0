//! Decides in the supervisor which clients may connect to a server that `exec` runs.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::absolute;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_exec::client_judge::{ClientJudge, ConnectionEnds, DeniedClient};
use peername_identity::Counter;
use peername_proto::{Carrier, Header, Parsed, parse};
use peername_server::access::clients::{ClientAccess, ClientRefusal, HeaderClient};
use peername_server::addr::{ClaimedSource, PeerAddr, canonical};
use peername_sys::process::stderr::try_write_line;

use peername_daemon::reload::file_watch::Fingerprints;

/// The lists of clients and the required TLVs. Files are read again when they have changed. Connections that are open then
/// stay: they are the program's alone.
#[derive(Debug)]
pub(super) struct ListJudge {
    access: Arc<ClientAccess>,
    files: RefCell<ListFiles>,
}

/// The state of the files.
#[derive(Debug, Default)]
struct ListFiles {
    /// The files when they were last read. `None`: by the launcher, and they may have changed since.
    read: Option<Fingerprints>,
    compared: Option<Instant>,
}

impl ListJudge {
    /// Creates the judge; `None` if every client may connect.
    pub(super) fn for_access(access: Arc<ClientAccess>) -> Option<Rc<dyn ClientJudge>> {
        if !access.has_lists() && !access.requires_tlvs() {
            return None;
        }
        let files = RefCell::default();
        Some(Rc::new(Self { access, files }))
    }

    /// Reads the lists again if their files have changed.
    fn refresh(&self) {
        let (mut files, now) = (self.files.borrow_mut(), Instant::now());
        if files.compared.is_some_and(|at| now < at + COMPARE_INTERVAL) {
            return;
        }
        files.compared = Some(now);
        if files.read.as_ref().is_some_and(Fingerprints::are_current) {
            return;
        }
        let mut read = Fingerprints::default();
        read.note_all(self.access.files());
        files.read = Some(read);
        if let Err(error) = self.access.reread() {
            try_write_line(&format!(
                "peername: {error}; the lists of before stay in force, whole"
            ));
        }
    }
}

impl ClientJudge for ListJudge {
    fn judge(&self, ends: ConnectionEnds, header: Option<&[u8]>) -> Result<(), DeniedClient> {
        self.refresh();
        let peer = PeerAddr(ends.peer);
        let Some(header) = header.and_then(complete_header) else {
            let judged = match self.access.requires_tlvs() {
                true => Err(Counter::TlvMissing),
                false => self.access.judge(peer.ip()).map_err(counter_of),
            };
            let client = canonical(ends.peer);
            return judged.map_err(|why| DeniedClient { client, why });
        };
        let client = HeaderClient {
            claim: header.source().map(ClaimedSource::canonical),
            peer,
            tlvs: self.access.judge_tlvs(&header),
        };
        let judged = self.access.admit(client, |ip| is_on_this_host(ip, ends));
        judged.map_err(|refusal| DeniedClient {
            client: client
                .claim
                .map_or_else(|| canonical(ends.peer), |claim| claim.0),
            why: counter_of(refusal),
        })
    }
}

/// Whether the peer is on this host. A connection to one of its own addresses comes from that address, unless the peer binds
/// another one; all of them would take a query to the kernel.
fn is_on_this_host(peer: IpAddr, ends: ConnectionEnds) -> bool {
    let local = ends.local.map(|local| local.ip().to_canonical());
    peer.is_loopback() || Some(peer) == local
}

fn complete_header(bytes: &[u8]) -> Option<Header<'_>> {
    match parse(bytes, Carrier::Stream) {
        Ok(Parsed::Complete(header)) => Some(header),
        Ok(Parsed::NeedMore(_)) | Err(_) => None,
    }
}

fn counter_of(refusal: ClientRefusal) -> Counter {
    match refusal {
        ClientRefusal::Denied { .. } => Counter::ClientDenied,
        ClientRefusal::NotAllowed => Counter::ClientNotAllowed,
        ClientRefusal::TlvMissing { .. } => Counter::TlvMissing,
        ClientRefusal::TlvMismatch { .. } => Counter::TlvMismatch,
    }
}

/// The value of an option, with an absolute path if it names a file: the supervisor has another working directory.
pub(super) fn with_absolute_path(value: &str) -> String {
    let path = value.strip_prefix('@').map(absolute);
    match path {
        Some(Ok(path)) => format!("@{}", path.display()),
        // An empty path is reported when it is read.
        Some(Err(_)) | None => value.to_owned(),
    }
}

/// The time between two comparisons of the files: a ban is in force within a second, and a file that changes all the time is
/// not read for every connection.
const COMPARE_INTERVAL: Duration = Duration::from_millis(500);
