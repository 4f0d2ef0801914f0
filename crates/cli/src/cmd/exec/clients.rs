//! Decides in the supervisor which clients may connect to a server that `exec` runs.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peername_daemon::reload::file_watch::Fingerprints;
use peername_exec::client_judge::{ClientJudge, ConnectionEnds, DeniedClient};
use peername_exec::stderr_line::try_write_line;
use peername_identity::{Counter, pseudo_v4};
use peername_proto::{Carrier, Header, Parsed, parse};
use peername_server::access::clients::{ClientAccess, ClientRefusal, HeaderClient};
use peername_server::access::network_set::NetworkListError;
use peername_server::addr::{ClaimedSource, PeerAddr, canonical};
use peername_sys::throttle::RepeatThrottle;

/// The lists of clients and the required TLVs. Files are read again when they have changed. A changed list ends no open
/// connection: the program has its socket, and the supervisor does not.
#[derive(Debug)]
pub(super) struct ListJudge {
    access: Arc<ClientAccess>,
    files: RefCell<ListFiles>,
}

/// The files of the lists.
#[derive(Debug, Default)]
struct ListFiles {
    /// The files as the judge last read them; `None` if only the launcher has read them.
    read: Option<Fingerprints>,
    /// When the files were last compared with `read`.
    compared: Option<Instant>,
    /// Whether the last read has failed.
    is_stale: bool,
    /// Throttles the log of failures of reads that are tried again.
    failures: RepeatThrottle,
    /// A duplicate of standard error that is closed while the files are read: clients and threads of the program may have taken
    /// all other descriptors. Files are read one after the other.
    reserved: Option<OwnedFd>,
}

impl ListFiles {
    /// Reserves the descriptor for the next read, if there is one.
    fn reserve_descriptor(&mut self) {
        if self.reserved.is_none() {
            // A duplicate: a socket could be denied by RestrictAddressFamilies=.
            self.reserved = io::stderr().as_fd().try_clone_to_owned().ok();
        }
    }

    /// Logs a failed read. The failure of a retry is logged only if its error differs from the last one, or has not been logged
    /// for a while.
    fn log_failure(&mut self, read: Result<(), NetworkListError>, is_retry: bool) {
        let Err(error) = read else {
            return self.failures.clear();
        };
        let error = error.to_string();
        if self.failures.passes(&error) || !is_retry {
            try_write_line(&format!(
                "peername: {error}; the previous lists stay in force"
            ));
        }
    }
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

    /// Reads the lists again if their files have changed, or could not be read for a reason that may have passed.
    fn refresh(&self) {
        let (mut files, now) = (self.files.borrow_mut(), Instant::now());
        if files.compared.is_some_and(|at| now < at + COMPARE_INTERVAL) {
            return;
        }
        files.compared = Some(now);
        // In case there was none after the last read.
        files.reserve_descriptor();
        if files.read.as_ref().is_some_and(Fingerprints::are_current) {
            return;
        }
        files.reserved = None;
        let mut read = Fingerprints::default();
        let reread = read.note_read(|read| {
            read.note_all(self.access.files());
            self.access.reread()
        });
        files.reserve_descriptor();
        let before = files.read.replace(read);
        let is_retry = before.is_some_and(|before| before.is_incomplete());
        files.is_stale = reread.is_err();
        files.log_failure(reread, is_retry);
    }

    fn judge_header(&self, ends: ConnectionEnds, header: &Header<'_>) -> Result<(), DeniedClient> {
        let client = HeaderClient {
            claim: header.source().map(ClaimedSource::canonical),
            peer: PeerAddr(ends.peer),
            tlvs: self.access.judge_tlvs(header),
        };
        self.judge_client(ends, client)
    }

    fn judge_client(&self, ends: ConnectionEnds, client: HeaderClient) -> Result<(), DeniedClient> {
        self.access
            .admit(client, |ip| is_on_this_host(ip, ends))
            .and_then(|()| self.check_stand_in(client.address()))
            .map_err(|refusal| DeniedClient {
                client: client
                    .claim
                    .map_or_else(|| canonical(ends.peer), |claim| claim.0),
                reason: counter_for(refusal),
            })
    }

    /// Refuses an IPv6 client whose IPv4 stand-in ([`pseudo_v4`]) is denied as a single address. A server with an IPv4 socket
    /// logs the stand-in, so bans that are made from its log name it. A denied network does not count: bogon lists have
    /// 240.0.0.0/4, which contains every stand-in.
    fn check_stand_in(&self, client: IpAddr) -> Result<(), ClientRefusal> {
        let IpAddr::V6(ip) = client else {
            return Ok(());
        };
        match self.access.check_denied(pseudo_v4(ip).into()) {
            Err(ClientRefusal::Denied { by }) if by.prefix_len() < 32 => Ok(()),
            judged => judged,
        }
    }

    /// Judges a connection without a header: the peer is the client.
    fn judge_peer(&self, ends: ConnectionEnds) -> Result<(), DeniedClient> {
        let judged = if self.access.requires_tlvs() {
            Err(Counter::TlvMissing)
        } else {
            self.access
                .judge(PeerAddr(ends.peer).ip())
                .map_err(counter_for)
        };
        judged.map_err(|reason| DeniedClient {
            client: canonical(ends.peer),
            reason,
        })
    }
}

impl ClientJudge for ListJudge {
    fn prepare(&self) {
        self.files.borrow_mut().reserve_descriptor();
    }

    fn judge(&self, ends: ConnectionEnds, header: Option<&[u8]>) -> Result<(), DeniedClient> {
        self.refresh();
        match header.and_then(complete_header) {
            Some(header) => self.judge_header(ends, &header),
            None => self.judge_peer(ends),
        }
    }

    fn judge_again(
        &self,
        ends: ConnectionEnds,
        client: Option<SocketAddr>,
    ) -> Result<(), DeniedClient> {
        self.refresh();
        let claim = client.map(ClaimedSource::canonical);
        let client = HeaderClient::of_read_header(claim, PeerAddr(ends.peer));
        self.judge_client(ends, client)
    }

    fn has_stale_lists(&self) -> bool {
        self.files.borrow().is_stale
    }
}

/// Whether the peer is on this host: its address is a loopback one, or the one that it connected to. The latter is the source
/// of a connection within this host unless its socket is bound to another address. Only a query to the kernel would show all
/// addresses of this host.
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

fn counter_for(refusal: ClientRefusal) -> Counter {
    match refusal {
        ClientRefusal::Denied { .. } => Counter::ClientDenied,
        ClientRefusal::NotAllowed => Counter::ClientNotAllowed,
        ClientRefusal::TlvMissing { .. } => Counter::TlvMissing,
        ClientRefusal::TlvMismatch { .. } => Counter::TlvMismatch,
    }
}

/// The time between two comparisons of the files: a ban is in force within a second, and a file that changes all the time is
/// not read for every connection.
const COMPARE_INTERVAL: Duration = Duration::from_millis(500);
