//! The receiving side: takes the header off and says which session the rest belongs to.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use peername_kernel::flow;
use peername_kernel::udp::DataPath;
use peername_proto::V2_SIGNATURE;

use super::dialect::Headers;
use super::dialect::header::Framed;
use super::drop_reason::Dropped;
use super::endpoints::{Key, Path};
use super::listeners::UdpSockets;
use super::lru_table::{Limits, Table};
use super::offload::{Kernel, Shortcut};
use super::session::Session;
use super::session::role::{Admitted, Role};
use super::worker;
use crate::addr::LocalAddr;
use crate::config::{Config, Datagrams, Dialect, HeaderLimits};
use crate::counters::Counters;
use crate::outcome::Failure;
use crate::permit::Permit;
use crate::server::Companion;
use crate::service::{Current, ListenerId, Look, Service};

/// A proxy for UDP.
#[derive(Clone, Debug)]
pub struct UdpProxy {
    services: Current,
    counters: Arc<Counters>,
    config: Datagrams,
    kernel: Kernel,
}

impl UdpProxy {
    /// A proxy that serves each session by its listener's service at the time it began. Trust is asked
    /// for each datagram, and so is that of now.
    ///
    /// Steady sessions are left to `kernel`, if there is one.
    pub fn new(
        services: Current,
        counters: Arc<Counters>,
        config: Datagrams,
        kernel: Option<Arc<DataPath>>,
    ) -> Self {
        Self {
            services,
            counters,
            config,
            kernel,
        }
    }

    /// What the workers are to do with these sockets: one companion for each worker that has some.
    pub fn companions(&self, sockets: UdpSockets) -> Vec<Companion> {
        let limits = worker::limits(&self.config, sockets.workers());
        let listeners: Arc<[_]> = sockets.listeners.clone().into();
        let role = || Receiving {
            services: self.services.clone(),
            look: self.services.look(),
            last: vec![None; listeners.len()],
            listeners: Arc::clone(&listeners),
            dialect: self.config.dialect,
            flows: Table::new(Limits {
                unanswered: limits.idle,
                ..limits
            }),
        };
        worker::companions(sockets, limits, &self.counters, self.kernel.clone(), role)
    }
}

/// One worker's view.
struct Receiving {
    services: Current,
    look: Look,
    listeners: Arc<[(ListenerId, LocalAddr)]>,
    /// What each was served by when it was asked for last.
    last: Vec<Option<Arc<Service>>>,
    dialect: Dialect,
    /// With [`Dialect::First`]: what a header said of the balancer's address and port, at a listener.
    flows: Table<Flow, Framed>,
}

/// Listener, where a TPROXY rule brought it from, and the balancer's address and port.
type Flow = (usize, Option<SocketAddr>, SocketAddr);

fn flow_of(path: &Path) -> Flow {
    (path.listener, path.original, path.peer.0)
}

impl Role for Receiving {
    fn admit(&mut self, bytes: &[u8], path: &Path, now: Instant) -> Result<Admitted, Dropped> {
        let peer = path.peer;
        let service = self.service(path.listener)?;
        let Config { trust, header, .. } = &*service.rules.config;
        if !trust.contains(peer.ip()) {
            return Err(Failure::Untrusted.into());
        }
        let limits = *header;
        let framed = match self.dialect {
            Dialect::Each => Framed::proxy_v2(bytes, peer, &limits)?,
            Dialect::Spp => Framed::spp(bytes, peer)?,
            Dialect::First => self.of_flow(bytes, path, now, &limits)?,
        };
        let key = Key {
            listener: path.listener,
            original: path.original,
            from: match framed.claim {
                Some(_) => SocketAddr::new(peer.ip(), 0),
                None => peer.0,
            },
            client: framed.claim.map(|claim| claim.0),
            destination: framed.destination,
        };
        Ok(Admitted {
            key,
            balancer: peer.ip(),
            payload: framed.header_len,
            framed,
        })
    }

    fn open(&self, admitted: &Admitted) -> Result<UdpSocket, Failure> {
        let (service, permit) = self.permit(admitted)?;
        service.connector.datagram(&permit)
    }

    fn target(&self, admitted: &Admitted) -> Result<Option<SocketAddr>, Failure> {
        let (_, permit) = self.permit(admitted)?;
        Ok(permit.source().map(|_| permit.target().0))
    }

    fn headers(&self, admitted: &Admitted) -> Result<Headers, Failure> {
        let reply = admitted.framed.spp.map(|spp| spp.to_bytes().into());
        Ok(Headers {
            reply: reply.unwrap_or_default(),
            ..Headers::default()
        })
    }

    /// Under [`Dialect::First`] the balancer's address and port may speak for another client since, or
    /// for nobody. A flow that is answered goes after all that are not, as its session does.
    fn answer(&mut self, path: &Path, key: &Key, now: Instant) -> bool {
        if self.dialect != Dialect::First {
            return true;
        }
        let Some(id) = self.flows.find(&flow_of(path)) else {
            return false;
        };
        let is_theirs = self.flows.get(id).is_some_and(|flow| {
            flow.claim.map(|claim| claim.0) == key.client && flow.destination == key.destination
        });
        if is_theirs {
            self.flows.touch(id, now, true);
        }
        is_theirs
    }

    /// What goes to a backend on this host, for a client that a header names. Under [`Dialect::First`] what a
    /// datagram without a header belongs to changes with the next header, too fast for the kernel to be told.
    fn shortcut(&self, session: &Session) -> Option<Shortcut> {
        let dialect = match self.dialect {
            Dialect::Each => flow::Dialect::Each,
            Dialect::Spp => flow::Dialect::Spp,
            Dialect::First => return None,
        };
        let (id, listener) = self.listener(session.path.listener).ok()?;
        let services = self.services.now();
        let rules = &services.of(id)?.rules;
        let is_plain = session.key.client.is_some() && session.path.original.is_none();
        (is_plain && rules.is_here(session.upstream.ip())).then(|| Shortcut {
            dialect,
            port: listener.0.port(),
        })
    }

    fn tick(&mut self, now: Instant) {
        while self.flows.expire(now).is_some() {}
    }
}

impl Receiving {
    /// What the service of its listener allows.
    fn permit(&self, admitted: &Admitted) -> Result<(Arc<Service>, Permit), Failure> {
        let (id, listener) = self.listener(admitted.key.listener)?;
        let services = self.services.now();
        let service = services.of(id).ok_or(Failure::NoService)?;
        // As for TCP, where the connection's own address says it.
        let listener = admitted.key.original.map_or(listener, LocalAddr);
        let permit = Permit::decide(&admitted.framed, listener, &service.rules)?;
        Ok((Arc::clone(service), permit))
    }

    /// That of now; where a reload has taken the listener away, the last one, by which its open sessions go on.
    fn service(&mut self, number: usize) -> Result<&Service, Failure> {
        let (id, _) = self.listener(number)?;
        let last = self.last.get_mut(number).ok_or(Failure::NoService)?;
        if let Some(now) = self.look.load().of(id)
            && last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, now))
        {
            *last = Some(Arc::clone(now));
        }
        last.as_deref().ok_or(Failure::NoService)
    }

    /// By its number here.
    fn listener(&self, number: usize) -> Result<(ListenerId, LocalAddr), Failure> {
        self.listeners
            .get(number)
            .copied()
            .ok_or(Failure::NoService)
    }

    /// A header opens a flow or changes whose it is; without one, a datagram belongs to the flow of its
    /// sender.
    fn of_flow(
        &mut self,
        bytes: &[u8],
        path: &Path,
        now: Instant,
        limits: &HeaderLimits,
    ) -> Result<Framed, Dropped> {
        let key = flow_of(path);
        let known = self.flows.find(&key);
        if let Some(id) = known
            && !bytes.starts_with(&V2_SIGNATURE)
        {
            self.flows.touch(id, now, false);
            let flow = self.flows.get(id).copied();
            return flow.ok_or(Dropped::Evicted);
        }
        let framed = Framed::proxy_v2(bytes, path.peer, limits)?;
        let flow = Framed {
            header_len: 0,
            ..framed
        };
        match known {
            Some(id) => {
                self.flows.touch(id, now, false);
                if let Some(known) = self.flows.get_mut(id) {
                    *known = flow;
                }
            }
            None => {
                let balancer = path.peer.ip();
                let _ = self.flows.make_room(balancer);
                self.flows.insert(key, balancer, now, flow);
            }
        }
        if framed.header_len == bytes.len() {
            return Err(Dropped::HeaderOnly);
        }
        Ok(framed)
    }
}
