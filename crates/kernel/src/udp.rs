//! The data path of UDP sessions: loads the program of `bpf/udp.c`, and tells it of sessions.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, fs, io};

use aya::maps::{Array, HashMap as Table, MapData, MapError, PerCpuArray};
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfError, EbpfLoader};
use peername_sys::clock;

use crate::flow::{Flow, Format};
use crate::layout::{
    Counted, PORT_BACKEND, PORT_EACH, PORT_SPP, PathKey, RequestKey, RewriteValue,
    TOTAL_FAILED_REPLIES, TOTAL_FAILED_REQUESTS, TOTAL_REPLIES, TOTAL_REQUESTS,
};

/// Why there is no data path in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no program.
    #[error(
        "this peername was built without the data path in the kernel: build it where clang and libbpf's headers are \
         (Debian: clang, libbpf-dev)"
    )]
    NotBuilt,
    /// The program does not load.
    #[error(
        "making the tables of the data path in the kernel, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Load(#[from] EbpfError),
    /// The kernel does not take it.
    #[error(
        "loading the data path into the kernel, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Refused(#[from] ProgramError),
    /// It can't be attached.
    #[error(
        "attaching the data path to {device}, which needs Linux 6.6, CAP_BPF and CAP_NET_ADMIN at the start"
    )]
    Attach {
        /// Name of the device.
        device: String,
        /// What the kernel said.
        #[source]
        error: ProgramError,
    },
    /// A setting of loopback can't be made.
    #[error(
        "writing {value} to {setting}, for the data path in the kernel; where it can't be written, set it from outside"
    )]
    Setting {
        /// Its path.
        setting: &'static str,
        /// What it should be.
        value: &'static str,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// The program is not the one this was written for.
    #[error("the kernel's program lacks {0}: a bug of peername's")]
    Missing(&'static str),
}

/// The program, at the ingress of devices for as long as this lives. If the process ends, however it ends, the
/// program goes, too.
pub struct DataPath {
    tables: Mutex<Tables>,
    /// How often all sessions were taken back.
    epoch: AtomicU64,
    /// Whether IPv4 clients would be looked for on loopback, and not be found.
    is_filtered: AtomicBool,
    /// Owns program and links.
    _program: Ebpf,
}

struct Tables {
    requests: Table<MapData, RequestKey, RewriteValue>,
    replies: Table<MapData, PathKey, RewriteValue>,
    ports: Array<MapData, u8>,
    totals: PerCpuArray<MapData, u64>,
    /// What of `totals` was reported.
    reported: Totals,
    /// Which sessions the kernel knows, and what the counts were of those that were forgotten.
    known: HashMap<Told, Option<Usage>>,
}

/// A time in which decisions hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

/// A session that the kernel was told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Told {
    request: RequestKey,
    reply: PathKey,
}

/// What the kernel did for a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Datagrams to the backend.
    pub requests: u64,
    /// Their payload's octets.
    pub request_octets: u64,
    /// Datagrams to the balancer.
    pub replies: u64,
    /// Their payload's octets, without the header that was put in front.
    pub reply_octets: u64,
    /// When the last of either came, as CLOCK_MONOTONIC has it, to the tick of the kernel's timer. Zero for never.
    pub last: Duration,
}

/// What the kernel did for all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Datagrams to backends.
    pub requests: u64,
    /// Datagrams to balancers.
    pub replies: u64,
    /// Requests lost because a packet could not be changed, for want of memory.
    pub failed_requests: u64,
    /// The same of replies.
    pub failed_replies: u64,
}

impl fmt::Debug for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPath").finish_non_exhaustive()
    }
}

/// Whether the kernel takes the programs. Nothing is attached and no setting changed.
///
/// # Errors
///
/// [`Error`]: they were not built, the kernel is too old, or a capability is missing.
pub fn try_load() -> Result<(), Error> {
    if PROGRAM.is_empty() {
        return Err(Error::NotBuilt);
    }
    let mut program = EbpfLoader::new()
        .map_max_entries("requests", 1)
        .map_max_entries("replies", 1)
        .load(PROGRAM)?;
    load(&mut program).map(drop)
}

impl DataPath {
    /// Loads the program and attaches it to the ingress of `devices` (names), before programs that are there
    /// already; none may be left out where balancers' datagrams come in, and loopback not at all. With room for
    /// so many `sessions`.
    ///
    /// Settings of loopback (ip-sysctl) are changed: what comes in elsewhere goes on there, from a client's address to
    /// perhaps 127.0.0.1. So `accept_local` and `route_localnet` are set to 1, and `rp_filter` to 0. Nothing comes to
    /// loopback but from this host and by programs like this one. Where `rp_filter` is on for all devices, what comes in
    /// over IPv4 by others than loopback stays in user space.
    ///
    /// Since Linux 6.6 (TCX). Needs CAP_BPF and CAP_NET_ADMIN, but only here: what was opened can be used without
    /// (Linux 5.19).
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn attach(devices: &[String], sessions: u32) -> Result<Self, Error> {
        if PROGRAM.is_empty() {
            return Err(Error::NotBuilt);
        }
        let mut program = EbpfLoader::new()
            .map_max_entries("requests", sessions)
            .map_max_entries("replies", sessions)
            .load(PROGRAM)?;
        attach(&mut program, devices)?;
        for (setting, value) in SETTINGS {
            set(setting, value)?;
        }
        let tables = Tables {
            requests: take(&mut program, "requests")?,
            replies: take(&mut program, "replies")?,
            ports: take(&mut program, "ports")?,
            totals: take(&mut program, "totals")?,
            reported: Totals::default(),
            known: HashMap::new(),
        };
        Ok(Self {
            tables: Mutex::new(tables),
            epoch: AtomicU64::new(0),
            is_filtered: AtomicBool::new(is_filtered()),
            _program: program,
        })
    }

    /// Leaves datagrams of a session to the kernel from now on: those that are exactly as `flow` says.
    ///
    /// `None` when it is not one for the kernel ([`Flow::is_for_kernel`]), a filter is in its way, there is no room, or
    /// what was decided in `epoch` may be decided otherwise by now.
    pub fn tell(&self, flow: &Flow<'_>, epoch: Epoch) -> Option<Told> {
        if !flow.is_for_kernel() || self.is_filtered() && flow.goes_on_loopback() {
            return None;
        }
        let written = flow.write();
        let told = Told {
            request: written.request_key,
            reply: written.reply_key,
        };
        let format = match flow.format()? {
            Format::ProxyV2 => PORT_EACH,
            Format::Spp => PORT_SPP,
        };
        let mut tables = self.tables();
        if tables.known.contains_key(&told) || self.epoch() != epoch {
            return None;
        }
        // Replies first: the first request through the kernel may be answered at once.
        let entered = tables
            .replies
            .insert(told.reply, written.reply.octets(), 0)
            .and_then(|()| {
                tables
                    .requests
                    .insert(told.request, written.request.octets(), 0)
            })
            .and_then(|()| tables.mark(flow.upstream.to.port(), PORT_BACKEND))
            .and_then(|()| tables.mark(flow.downstream.to.port(), format));
        if entered.is_err() {
            tables.forget(&told);
            return None;
        }
        tables.known.insert(told, None);
        Some(told)
    }

    /// The time until the next [`DataPath::clear`]. Ask before anything is decided.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// What the kernel has done for a session so far.
    pub fn usage(&self, told: &Told) -> Usage {
        self.tables().usage(told)
    }

    /// Takes a session back: what comes for it from now on comes to user space. What the kernel did for it.
    pub fn take_back(&self, told: &Told) -> Usage {
        let mut tables = self.tables();
        let usage = tables.usage(told);
        if let Some(None) = tables.known.remove(told) {
            tables.forget(told);
        }
        usage
    }

    /// Whether a session was taken back by [`DataPath::clear`].
    pub fn is_cleared(&self, told: &Told) -> bool {
        !matches!(self.tables().known.get(told), Some(None))
    }

    /// Takes all sessions back, because what was decided about them may be decided otherwise now. Each must still be
    /// taken back by itself: until then it is remembered what the kernel did for it.
    pub fn clear(&self) {
        let mut tables = self.tables();
        self.epoch.fetch_add(1, Ordering::Release);
        let known = tables.known.iter().filter(|(_, left)| left.is_none());
        let known: Vec<_> = known.map(|(told, _)| *told).collect();
        for told in known {
            let usage = tables.usage(&told);
            tables.forget(&told);
            tables.known.insert(told, Some(usage));
        }
    }

    /// Whether a reverse path filter is in the way of IPv4 from other hosts, so that it is for user space.
    pub fn is_filtered(&self) -> bool {
        self.is_filtered.load(Ordering::Relaxed)
    }

    /// Looks whether the settings of [`DataPath::attach`] still hold, and takes all sessions back if they don't any
    /// more. To be asked for once a second.
    pub fn check(&self) {
        let is_filtered = is_filtered();
        if !self.is_filtered.swap(is_filtered, Ordering::Relaxed) && is_filtered {
            self.clear();
        }
    }

    /// What was done since this last had an answer. `None` when that can't be read now: it is in the next answer.
    pub fn news(&self) -> Option<Totals> {
        let mut tables = self.tables();
        let now = tables.totals();
        Some(tables.reported.replace(now?))
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// A port once marked stays so: it costs its datagrams one look at a table.
    fn mark(&mut self, port: u16, what: u8) -> Result<(), MapError> {
        let port = u32::from(port);
        let marks = self.ports.get(&port, 0)?;
        self.ports.set(port, marks | what, 0)
    }

    fn usage(&self, told: &Told) -> Usage {
        if let Some(Some(usage)) = self.known.get(told) {
            return *usage;
        }
        let counted = |value: Result<RewriteValue, _>| match value {
            Ok(value) => Counted::of(&value),
            Err::<_, MapError>(_) => Counted::default(),
        };
        let requests = counted(self.requests.get(&told.request, 0));
        let replies = counted(self.replies.get(&told.reply, 0));
        Usage {
            requests: requests.datagrams,
            request_octets: requests.octets,
            replies: replies.datagrams,
            reply_octets: replies.octets,
            last: Duration::from_nanos(requests.used.max(replies.used)),
        }
    }

    /// An entry that is not there is forgotten, too.
    fn forget(&mut self, told: &Told) {
        let _ = self.requests.remove(&told.request);
        let _ = self.replies.remove(&told.reply);
    }

    fn totals(&self) -> Option<Totals> {
        Totals::read(|place| {
            let of_cpus = self.totals.get(&place, 0)?;
            Ok(of_cpus.iter().sum())
        })
    }
}

impl Totals {
    /// All of them or none: what is missing must not pass for nothing.
    fn read(total: impl Fn(u32) -> Result<u64, MapError>) -> Option<Self> {
        let total = |place| total(place).ok();
        Some(Self {
            requests: total(TOTAL_REQUESTS)?,
            replies: total(TOTAL_REPLIES)?,
            failed_requests: total(TOTAL_FAILED_REQUESTS)?,
            failed_replies: total(TOTAL_FAILED_REPLIES)?,
        })
    }

    /// What has come in between. They only ever grow.
    fn replace(&mut self, now: Self) -> Self {
        let before = std::mem::replace(self, now);
        Self {
            requests: now.requests - before.requests,
            replies: now.replies - before.replies,
            failed_requests: now.failed_requests - before.failed_requests,
            failed_replies: now.failed_replies - before.failed_replies,
        }
    }
}

impl Usage {
    /// How long ago the kernel last did anything for the session; `None` if it never did.
    pub fn idle(&self) -> Option<Duration> {
        (!self.last.is_zero()).then(|| clock::coarse_monotonic().saturating_sub(self.last))
    }
}

/// The program, as the kernel has verified it.
fn load(program: &mut Ebpf) -> Result<&mut SchedClassifier, Error> {
    let program = program.program_mut("datagrams");
    let program: Option<&mut SchedClassifier> = program.and_then(|program| program.try_into().ok());
    let program = program.ok_or(Error::Missing("datagrams"))?;
    program.load()?;
    Ok(program)
}

fn attach(program: &mut Ebpf, devices: &[String]) -> Result<(), Error> {
    let program = load(program)?;
    let named = |device: &str| {
        let device = device.to_owned();
        move |error| Error::Attach { device, error }
    };
    for device in devices {
        let before_others = TcAttachOptions::TcxOrder(LinkOrder::first());
        program
            .attach_with_options(device, TcAttachType::Ingress, before_others)
            .map_err(named(device))?;
    }
    Ok(())
}

fn take<T: TryFrom<aya::maps::Map>>(program: &mut Ebpf, name: &'static str) -> Result<T, Error> {
    let map = program.take_map(name).ok_or(Error::Missing(name))?;
    T::try_from(map).map_err(|_| Error::Missing(name))
}

/// Where it is so already, it need not be writable.
fn set(setting: &'static str, value: &'static str) -> Result<(), Error> {
    if is_so((setting, value)) {
        return Ok(());
    }
    fs::write(setting, value).map_err(|error| Error::Setting {
        setting,
        value,
        error,
    })
}

/// The larger of loopback's own `rp_filter` and that for all devices is what holds.
fn is_filtered() -> bool {
    let mut settings = SETTINGS.into_iter().chain([FILTER_OF_ALL]);
    !settings.all(is_so)
}

fn is_so((setting, value): (&str, &str)) -> bool {
    fs::read_to_string(setting).is_ok_and(|is| is.trim() == value)
}

/// Empty where it could not be compiled (`build.rs`).
static PROGRAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/udp.o"));

const SETTINGS: [(&str, &str); 3] = [
    ("/proc/sys/net/ipv4/conf/lo/accept_local", "1"),
    ("/proc/sys/net/ipv4/conf/lo/route_localnet", "1"),
    ("/proc/sys/net/ipv4/conf/lo/rp_filter", "0"),
];
const FILTER_OF_ALL: (&str, &str) = ("/proc/sys/net/ipv4/conf/all/rp_filter", "0");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_told_of_later() {
        let mut reported = Totals::default();
        let mut requests = |total: fn(u32) -> Result<u64, MapError>| {
            Totals::read(total).map(|now| reported.replace(now).requests)
        };
        assert_eq!(requests(|_| Ok(5)), Some(5));
        assert_eq!(requests(|_| Err(MapError::KeyNotFound)), None);
        assert_eq!(requests(|_| Ok(7)), Some(2));
    }
}
