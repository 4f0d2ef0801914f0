//! A load of datagrams with sequence numbers, each of which is answered once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::harness::addr::{BALANCER_V4, LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::datagram::DatagramSocket;
use crate::harness::header_bytes;
use crate::harness::lab::{Lab, WAIT_LIMIT, wait_until};
use crate::harness::rig::proxy::front_of;

/// Which datagrams have a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Each,
    First,
    Spp,
}

impl Header {
    pub(crate) fn dialect(self) -> &'static str {
        match self {
            Self::Each => "each",
            Self::First => "first",
            Self::Spp => "spp",
        }
    }

    fn bytes(self, client: SocketAddr, number: usize) -> Vec<u8> {
        match self {
            Self::First if number > 0 => Vec::new(),
            Self::Each | Self::First => header_bytes::v2_udp(client, front_of(client)),
            Self::Spp => header_bytes::spp(client, front_of(client)),
        }
    }

    fn is_on_replies(self) -> bool {
        self == Self::Spp
    }
}

/// Clients, each with a socket of the balancer, and a backend that answers with the address of the sender.
#[derive(Debug)]
pub(crate) struct UdpLoad {
    stop: Arc<AtomicBool>,
    /// The backend answers while clients or this hold the count.
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<usize>>,
    backend: JoinHandle<()>,
}

impl UdpLoad {
    pub(crate) fn start(lab: &Lab, header: Header) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicUsize::new(0));
        let backend = DatagramSocket::bind(&lab.server, TARGET_V4);
        let count = Arc::downgrade(&answered);
        let backend = thread::spawn(move || {
            while count.strong_count() > 0 {
                if let Some((bytes, from)) = backend.recv_within(Duration::from_millis(100)) {
                    backend.send(from, &[format!("{from} ").as_bytes(), &bytes]);
                }
            }
        });
        let client = |_| {
            let socket = DatagramSocket::bind(&lab.balancer, SocketAddr::new(BALANCER_V4, 0));
            let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
            thread::spawn(move || converse(&socket, header, &stop, &answered))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self {
            stop,
            answered,
            clients,
            backend,
        }
    }

    /// Waits for `answers` further answers, or until a client has failed.
    pub(crate) fn wait_answered(&self, answers: usize) {
        let before = self.answered.load(Relaxed);
        wait_until("answers", || {
            let failed = self.clients.iter().any(JoinHandle::is_finished);
            failed || self.answered.load(Relaxed) >= before + answers
        });
    }

    /// Ends the clients and the backend; returns how many datagrams were sent and how many were answered.
    #[track_caller]
    pub(crate) fn finish(self) -> (usize, usize) {
        self.stop.store(true, Relaxed);
        let sent = self.clients.into_iter().map(|client| {
            let sent = client.join();
            sent.unwrap_or_else(|_| panic!("a client failed, see above"))
        });
        let totals = (sent.sum(), self.answered.load(Relaxed));
        drop(self.answered);
        self.backend.join().expect("the backend");
        totals
    }
}

/// Sends a datagram every millisecond or two, whether or not the last one was answered; returns how many were sent.
fn converse(
    socket: &DatagramSocket,
    header: Header,
    stop: &AtomicBool,
    answered: &AtomicUsize,
) -> usize {
    let client = fresh_client_v4();
    let prefix = if header.is_on_replies() {
        header.bytes(client, 0)
    } else {
        Vec::new()
    };
    let mut is_answered = Vec::new();
    let receive = |is_answered: &mut Vec<bool>, limit| {
        let Some((bytes, from)) = socket.recv_within(limit) else {
            return false;
        };
        assert_eq!(from, LISTEN_V4);
        let text = bytes
            .strip_prefix(&prefix[..])
            .expect("the header of the request");
        let text = std::str::from_utf8(text).expect("text");
        let (address, number) = text.split_once(' ').expect("address and number");
        assert_eq!(
            address,
            client.to_string(),
            "the client as the backend sees it"
        );
        let number: usize = number.parse().expect("a number");
        assert!(!is_answered[number], "{number} was answered twice");
        is_answered[number] = true;
        answered.fetch_add(1, Relaxed);
        true
    };
    while !stop.load(Relaxed) {
        let number = is_answered.len();
        let bytes = header.bytes(client, number);
        socket.send(LISTEN_V4, &[&bytes, number.to_string().as_bytes()]);
        is_answered.push(false);
        // In the dialect `first`, the proxy knows the flow once the first datagram is answered.
        if number == 0 {
            assert!(receive(&mut is_answered, WAIT_LIMIT), "no first answer");
        }
        let next = Instant::now() + Duration::from_millis(1);
        while Instant::now() < next {
            receive(&mut is_answered, Duration::from_millis(1));
        }
    }
    let deadline = Instant::now() + WAIT_LIMIT;
    while is_answered.contains(&false) && Instant::now() < deadline {
        receive(&mut is_answered, Duration::from_millis(100));
    }
    is_answered.len()
}

const CLIENTS: usize = 8;
