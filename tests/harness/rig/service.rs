//! The long-running commands, each between the lab's balancer and a backend, for behaviour that all of them share.

use crate::harness::addr::{LISTEN_V4, TARGET_V4, fresh_client_v4};
use crate::harness::backend::Backend;
use crate::harness::conn::Conn;
use crate::harness::lab::{Lab, Scratch};
use crate::harness::peername::{BINARY, Peername, words};
use crate::harness::rig::proxy::header_for;

/// A command that listens on [`LISTEN_V4`] and connects to [`TARGET_V4`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Proxy,
    Forward,
    Intercept,
}

impl Service {
    pub(crate) const ALL: [Self; 3] = [Self::Proxy, Self::Forward, Self::Intercept];

    /// The subcommand with its listener, its backend and the clients that it admits.
    fn command(self) -> &'static str {
        match self {
            Self::Proxy => {
                "proxy --listen=10.81.0.1:8443 --target-v4=127.0.0.1:9000 --trust=10.81.0.0/24"
            }
            Self::Forward => "forward --listen=10.81.0.1:8443 --to=127.0.0.1:9000",
            Self::Intercept => {
                "intercept --listen=10.81.0.1:8443 --allow-destination=127.0.0.1:9000 \
                 --allow-client=10.81.0.0/24"
            }
        }
    }

    /// The first bytes of a client, for which the command connects to the backend.
    fn first_bytes(self) -> Vec<u8> {
        match self {
            Self::Proxy => header_for(fresh_client_v4()),
            Self::Forward => Vec::new(),
            Self::Intercept => {
                b"GET http://127.0.0.1:9000/ HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n".to_vec()
            }
        }
    }
}

/// Process, backend, files and hosts, dropped in this order.
pub(crate) struct ServiceRig {
    pub(crate) process: Peername,
    pub(crate) backend: Backend,
    pub(crate) lab: Lab,
    service: Service,
    _scratch: Scratch,
}

impl ServiceRig {
    /// Starts the command with these options.
    pub(crate) fn start(service: Service, options: &[&str]) -> Self {
        let (lab, scratch) = (Lab::new(), Scratch::new());
        let mut args = words(service.command());
        args.extend(options);
        let ca = format!("--ca={}", scratch.path_text("ca"));
        if service == Service::Intercept {
            lab.server.run(BINARY, &["ca", "init", &ca]);
            args.push(&ca);
        }
        Self {
            backend: Backend::listen(&lab.server, TARGET_V4),
            process: Peername::start(&lab.server, &args, &[LISTEN_V4]),
            lab,
            service,
            _scratch: scratch,
        }
    }

    /// Opens a connection of a client; returns the client's end and the backend's. With `intercept`, the client's end is then
    /// waiting for a response.
    #[track_caller]
    pub(crate) fn connect(&self) -> (Conn, Conn) {
        let bytes = self.service.first_bytes();
        let down = Conn::connect_and_send(&self.lab.balancer, LISTEN_V4, &bytes);
        let up = self.backend.accept();
        (down, up)
    }
}
