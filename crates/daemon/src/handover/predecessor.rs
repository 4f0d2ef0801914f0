//! The new process's side of an upgrade: takes sockets and sessions over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::env;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use peername_observe::admin::{AdminAddr, AdminListener};
use peername_proxy::udp::{Dialect, ReceivedState, RestoreError, UdpListeners};
use peername_server::listeners::InheritedSockets;
use peername_sys::ipc::fd_passing::take_inherited;
use peername_sys::ipc::inherited_socket::InheritedSocket;
use peername_sys::ipc::unix_socket_file::is_bound_at;
use peername_sys::process::stderr;
use peername_sys::socket::{is_ipv6_only, transparent};

use super::channel::Channel;
use super::message::{CHANNEL_VARIABLE, SocketInfo, ToPredecessor, ToSuccessor, VERSION};
use super::process_state::ProcessState;
use crate::listeners::{ListenPlan, gets_clients};
use crate::usage::error_text::with_causes;
use crate::value::text::ranges;

/// The process that this one replaces, which still serves.
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
    /// Its subcommand.
    pub(crate) command: String,
    /// The state of this process, which continues that of the previous one.
    pub(crate) state: Option<ProcessState>,
    /// All sockets that were received, in their order.
    received: Vec<SocketInfo>,
    tcp: HashMap<SocketAddr, Vec<TcpListener>>,
    udp: HashMap<SocketAddr, Vec<UdpSocket>>,
    /// By their index in the previous process.
    groups: BTreeMap<usize, PreviousGroup>,
    given: Vec<InheritedSocket>,
    /// The listeners of its `--admin` by address, until they are adopted.
    admin: HashMap<String, OwnedFd>,
    /// The addresses of the listeners of `--admin` that were adopted.
    adopted_admin: HashSet<String>,
}

impl Predecessor {
    /// Receives the sockets of the previous process, if one has started this process.
    ///
    /// # Errors
    ///
    /// It speaks another version of the protocol, or has ended.
    pub(crate) fn receive() -> anyhow::Result<Option<Self>> {
        let Some(channel) = inherited_channel() else {
            return Ok(None);
        };
        channel.set_time_limit(RECEIVE_LIMIT)?;
        let (hello, fds) = receive(&channel)?;
        let ToSuccessor::Hello { version, command } = hello else {
            bail!("{OTHER_VERSION}");
        };
        let _ = FAILURE_CHANNEL.set(channel.try_clone()?);
        // Until here, the launcher has read this process's standard error.
        for fd in fds {
            stderr::replace(fd)?;
        }
        ensure!(
            version == VERSION,
            "{OTHER_VERSION}: its protocol has version {version}, this one {VERSION}"
        );
        let mut predecessor = Self {
            channel,
            command,
            state: None,
            received: Vec::new(),
            tcp: HashMap::new(),
            udp: HashMap::new(),
            groups: BTreeMap::new(),
            given: Vec::new(),
            admin: HashMap::new(),
            adopted_admin: HashSet::new(),
        };
        loop {
            match receive(&predecessor.channel)? {
                (ToSuccessor::Sockets(infos), fds) => {
                    ensure!(
                        infos.len() == fds.len(),
                        "this process can open too few files for the sockets of the one that it replaces: raise LimitNOFILE or \
                         `ulimit -n`"
                    );
                    for (info, fd) in infos.into_iter().zip(fds) {
                        predecessor.add(info, fd)?;
                    }
                }
                (ToSuccessor::AllSockets, _) => return Ok(Some(predecessor)),
                _ => bail!("{OTHER_VERSION}"),
            }
        }
    }

    fn add(&mut self, info: SocketInfo, fd: OwnedFd) -> anyhow::Result<()> {
        match &info {
            SocketInfo::Tcp { addr, .. } => self.tcp.entry(*addr).or_default().push(fd.into()),
            SocketInfo::Udp {
                addr,
                group,
                worker,
                dialect,
                transparent,
            } => {
                self.udp.entry(*addr).or_default().push(fd.into());
                let group = self.groups.entry(*group).or_default();
                if *worker == 0 {
                    group.addresses.push(*addr);
                    group.dialect.clone_from(dialect);
                    group.transparent = *transparent;
                }
            }
            SocketInfo::Given(label) => {
                self.given.push(InheritedSocket::new(fd, label.clone())?);
            }
            SocketInfo::Admin(addr) => drop(self.admin.insert(addr.clone(), fd)),
        }
        self.received.push(info);
        Ok(())
    }

    /// Returns the sockets. The listeners of these plans take those that they need.
    ///
    /// # Errors
    ///
    /// A listener differs from that of the previous process in a setting that can't change.
    pub fn take_sockets(&mut self, plans: &[ListenPlan]) -> anyhow::Result<InheritedSockets> {
        for plan in plans {
            for &addr in &plan.tcp {
                self.check_transparent(addr, plan.transparent)?;
            }
            self.check_udp(&plan.udp, plan.udp_config.dialect, plan.transparent)?;
        }
        self.check_removed_udp(plans)?;
        let given = std::mem::take(&mut self.given);
        Ok(InheritedSockets {
            previous_tcp: std::mem::take(&mut self.tcp),
            previous_udp: std::mem::take(&mut self.udp),
            ..InheritedSockets::new(given)?
        })
    }

    /// Takes the service manager's TCP socket on this address for `--admin`, if there is one.
    pub(crate) fn take_given(&mut self, addr: SocketAddr) -> Option<InheritedSocket> {
        let index = self
            .given
            .iter()
            .position(|given| given.is_stream && given.addr == addr)?;
        Some(self.given.swap_remove(index))
    }

    /// Adopts the listener of `--admin` on this address, if there was one, and if clients still reach it.
    pub fn adopt_admin(&mut self, wanted: &AdminAddr) -> Option<AdminListener> {
        let addr = wanted.to_string();
        let socket = self.admin.remove(&addr)?;
        if !is_reached(wanted, &socket) {
            return None;
        }
        self.adopted_admin.insert(addr);
        Some(AdminListener::adopt(wanted.clone(), socket))
    }

    /// Refuses to make a transparent TCP listener on this address an ordinary one, or the reverse: the previous process has the
    /// same socket, and may go on.
    fn check_transparent(&self, wanted: SocketAddr, is_transparent: bool) -> anyhow::Result<()> {
        let is_reversed = self.received.contains(&SocketInfo::Tcp {
            addr: wanted,
            transparent: !is_transparent,
        });
        // A service manager may have set the option (`Transparent=`), so it may be set without being wanted.
        let would_be_set = is_transparent
            && self.given.iter().any(|given| {
                given.is_stream
                    && given.addr == wanted
                    && !transparent::is_transparent(given).unwrap_or(false)
            });
        ensure!(
            !is_reversed && !would_be_set,
            "whether {wanted} accepts what TPROXY rules redirect can't change without a restart"
        );
        Ok(())
    }

    /// Checks that the previous process had the same group of UDP listeners, or no group with any of its addresses. Otherwise
    /// the sessions of the previous process would not fit.
    fn check_udp(
        &self,
        addresses: &[SocketAddr],
        dialect: Dialect,
        is_transparent: bool,
    ) -> anyhow::Result<()> {
        let wanted: HashSet<_> = addresses.iter().collect();
        for group in self.groups.values() {
            let known: HashSet<_> = group.addresses.iter().collect();
            let is_same = known == wanted
                && group.dialect == dialect.name()
                && group.transparent == is_transparent;
            ensure!(
                is_same || known.is_disjoint(&wanted),
                "UDP at {}: its addresses, udp-header and listen-transparent can't change at an upgrade; the group can \
                 only be removed as a whole",
                ranges(group.addresses.iter().copied())
            );
        }
        Ok(())
    }

    /// Checks that no UDP listener gets clients of one that the previous process had and this one does not have. The previous
    /// process drains it, and would receive their datagrams, or keep the ports of their sessions.
    fn check_removed_udp(&self, plans: &[ListenPlan]) -> anyhow::Result<()> {
        let wanted: HashSet<_> = plans.iter().flat_map(|plan| &plan.udp).copied().collect();
        for &old in self.udp.keys().filter(|addr| !wanted.contains(addr)) {
            if let Some(new) = wanted
                .iter()
                .find(|new| self.shares_udp_clients(old, **new))
            {
                bail!(
                    "UDP at {new} would get clients of {old}, which the process that this one replaces drains: reload first, or \
                     restart"
                );
            }
        }
        Ok(())
    }

    /// Whether a wanted UDP listener and one that is removed get clients of one another. A wanted one that stays has its own.
    fn shares_udp_clients(&self, removed: SocketAddr, wanted: SocketAddr) -> bool {
        self.gets_udp_clients(wanted, removed)
            || (self.gets_udp_clients(removed, wanted) && !self.udp.contains_key(&wanted))
    }

    fn gets_udp_clients(&self, wide: SocketAddr, narrow: SocketAddr) -> bool {
        let sockets = self.udp.get(&wide);
        let first = sockets.and_then(|sockets| sockets.first());
        gets_clients(wide, first.is_some_and(is_ipv6_only), narrow)
    }

    /// Reports which sockets were adopted and that everything is prepared, and receives the sessions.
    ///
    /// # Errors
    ///
    /// The previous process has given up, and goes on serving.
    pub fn receive_sessions(
        &mut self,
        tcp: impl IntoIterator<Item = SocketAddr>,
        mut udp: Vec<(Vec<SocketAddr>, &mut UdpListeners)>,
    ) -> anyhow::Result<()> {
        let tcp: HashSet<_> = tcp.into_iter().collect();
        let udp_addresses: HashSet<_> = udp.iter().flat_map(|(all, _)| all).copied().collect();
        let is_adopted = |info: &SocketInfo| match info {
            SocketInfo::Tcp { addr, .. } => tcp.contains(addr),
            SocketInfo::Udp { addr, .. } => udp_addresses.contains(addr),
            SocketInfo::Given(_) => true,
            SocketInfo::Admin(addr) => self.adopted_admin.contains(addr),
        };
        let mut adopted = std::mem::take(&mut self.received);
        adopted.retain(is_adopted);
        let mut seen = HashSet::new();
        adopted.retain(|info| seen.insert(info.clone()));
        for chunk in adopted.chunks(ADOPTED_PER_MESSAGE) {
            send(&self.channel, &ToPredecessor::Adopted(chunk.to_vec()))?;
        }
        send(&self.channel, &ToPredecessor::Prepared)?;
        loop {
            match receive(&self.channel)? {
                (
                    ToSuccessor::Sessions {
                        group,
                        worker,
                        state,
                    },
                    sockets,
                ) => {
                    let group = self.groups.get(&group).context(OTHER_VERSION)?;
                    group.restore(worker, (state, sockets), &mut udp)?;
                }
                (ToSuccessor::AllSessions, _) => return Ok(()),
                _ => bail!("{OTHER_VERSION}"),
            }
        }
    }

    /// Takes over: reports that this process can serve, and waits until the previous one stops accepting. Fails as
    /// [`Self::receive_sessions`] does.
    pub fn take_over(self) -> anyhow::Result<()> {
        send(&self.channel, &ToPredecessor::Ready)?;
        match receive(&self.channel)? {
            (ToSuccessor::Serve(inheritance), _) => {
                if let Some(state) = &self.state {
                    state.restore(&inheritance);
                }
                Ok(())
            }
            _ => bail!("{OTHER_VERSION}"),
        }
    }
}

/// A group of UDP listeners of the previous process.
#[derive(Debug, Default)]
struct PreviousGroup {
    /// In the order of their indices.
    addresses: Vec<SocketAddr>,
    dialect: String,
    transparent: bool,
}

impl PreviousGroup {
    /// Adds the state of one of its workers to the listeners that have its sockets.
    fn restore(
        &self,
        worker: usize,
        received: ReceivedState,
        listeners: &mut [(Vec<SocketAddr>, &mut UdpListeners)],
    ) -> Result<(), RestoreError> {
        let (addresses, sockets) = listeners
            .iter_mut()
            .find(|(addresses, _)| {
                let first = self.addresses.first();
                first.is_some_and(|first| addresses.contains(first))
            })
            .ok_or(RestoreError::UnknownIndex)?;
        // The index of each of the group's listeners in this process.
        let new_indices = self
            .addresses
            .iter()
            .map(|addr| addresses.iter().position(|other| other == addr))
            .collect::<Option<Vec<_>>>()
            .ok_or(RestoreError::UnknownIndex)?;
        sockets.restore(worker, received, &new_indices)
    }
}

/// Reports to the previous process, if it still waits, why this one can't replace it.
pub fn report_failure(error: &anyhow::Error) {
    if let Some(channel) = FAILURE_CHANNEL.get() {
        // Once this process serves, nothing receives it.
        let _ = channel.send(&ToPredecessor::Failed(with_causes(error)), &[]);
    }
}

fn send(channel: &Channel, message: &ToPredecessor) -> anyhow::Result<()> {
    channel.send(message, &[]).context(GIVEN_UP)
}

fn receive(channel: &Channel) -> anyhow::Result<(ToSuccessor, Vec<OwnedFd>)> {
    channel.receive().context(GIVEN_UP)
}

/// Takes the channel that a launcher passed to this process. The variable may still name the channel of an ancestor.
fn inherited_channel() -> Option<Channel> {
    let value = env::var(CHANNEL_VARIABLE).ok()?;
    let (pid, number) = value.split_once(':')?;
    if pid.parse() != Ok(std::process::id()) {
        return None;
    }
    take_inherited(number.parse().ok()?).map(Channel::from)
}

/// Set once a previous process has sent its first message.
static FAILURE_CHANNEL: OnceLock<Channel> = OnceLock::new();
const GIVEN_UP: &str = "the process that this one was to replace goes on";
const OTHER_VERSION: &str = "the process that this one was to replace is of another version";
/// Longer than the default of `--upgrade-timeout`, after which the previous process ends the upgrade.
const RECEIVE_LIMIT: Duration = Duration::from_secs(60);
/// Few enough that a message fits into a socket's buffer.
const ADOPTED_PER_MESSAGE: usize = 256;

/// Whether the path of a Unix socket still leads to it: the path may have been removed, or be another process's by now.
fn is_reached(addr: &AdminAddr, socket: &OwnedFd) -> bool {
    match addr {
        AdminAddr::Tcp(_) => true,
        AdminAddr::Unix(path) => is_bound_at(socket, path),
    }
}
