//! The data path in the kernel: loads the program of `bpf/udp.c`, and installs flows in it.

mod error;
mod maps;
mod sysctl;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::flow::Flow;
use crate::totals::Totals;
use crate::usage::Usage;
use maps::Maps;

pub use error::Error;
pub use maps::InstalledFlow;

/// The program, attached to the ingress of devices for as long as this lives. However the process ends, the program is
/// detached.
pub struct DataPath {
    maps: Mutex<Maps>,
    /// The number of times that all flows were evicted.
    epoch: AtomicU64,
    /// [`DataPath::is_reverse_path_filtered`], as of the last check.
    is_reverse_path_filtered: AtomicBool,
    /// Owns the program and its links to devices.
    _object: Ebpf,
}

/// A period in which decisions about sessions hold: it ends with [`DataPath::evict_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

impl fmt::Debug for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataPath").finish_non_exhaustive()
    }
}

/// Checks that the kernel accepts the program. Nothing is attached and no setting changed.
pub fn try_load() -> Result<(), Error> {
    load(&mut open_object(1)?).map(drop)
}

impl DataPath {
    /// Loads the program, with maps for `max_flows`, and attaches it to the ingress of `devices` (names), before programs
    /// that are attached already. `devices` must hold each device that balancers' datagrams come in by, and loopback.
    ///
    /// Sets sysctls of loopback: requests that come in by another device are redirected there, from a client's address to
    /// perhaps 127.0.0.1. So `accept_local` and `route_localnet` are set to 1, and `rp_filter` to 0. Loopback receives
    /// packets of this host only, and those that programs like this one redirect. Where `rp_filter` is on for all devices,
    /// IPv4 requests that come in by other devices than loopback stay in user space.
    ///
    /// Since Linux 6.6 (TCX). Needs CAP_BPF and CAP_NET_ADMIN, but only here: open maps can be used without them
    /// (Linux 5.19).
    pub fn attach(devices: &[String], max_flows: u32) -> Result<Self, Error> {
        let mut object = open_object(max_flows)?;
        attach(&mut object, devices)?;
        sysctl::set_all()?;
        let maps = Maps::new(&mut object)?;
        Ok(Self {
            maps: Mutex::new(maps),
            epoch: AtomicU64::new(0),
            is_reverse_path_filtered: AtomicBool::new(sysctl::is_reverse_path_filtered()),
            _object: object,
        })
    }

    /// Installs a flow: offloads a session's datagrams that match `flow` exactly. `epoch` is the epoch in which user space
    /// decided about the session.
    ///
    /// `None` when the kernel can't carry the flow ([`Flow::is_offloadable`]), the reverse path filter would drop its requests,
    /// the maps are full, or the flow is installed already; and when `epoch` is over, because the decision may not hold any
    /// more.
    pub fn install(&self, flow: &Flow<'_>, epoch: Epoch) -> Option<InstalledFlow> {
        if !flow.is_offloadable()
            || self.is_reverse_path_filtered() && flow.is_redirected_to_loopback()
        {
            return None;
        }
        let mut maps = self.maps();
        if self.epoch() != epoch {
            return None;
        }
        maps.install(flow)
    }

    /// The current epoch. Read it before anything is decided about a session.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// The kernel's counters of a flow.
    pub fn usage(&self, flow: &InstalledFlow) -> Usage {
        self.maps().usage(flow)
    }

    /// Removes a flow, and returns its final counters. Its datagrams go to user space from now on.
    pub fn remove(&self, flow: &InstalledFlow) -> Usage {
        self.maps().remove(flow)
    }

    /// The number of installed flows.
    pub fn flow_count(&self) -> usize {
        self.maps().installed_count()
    }

    /// Whether a flow was evicted by [`DataPath::evict_all`].
    pub fn is_evicted(&self, flow: &InstalledFlow) -> bool {
        !self.maps().is_installed(flow)
    }

    /// Evicts all flows from the kernel, because the decisions about their sessions may not hold any more, and begins a
    /// new epoch. Each must still be [removed](DataPath::remove): until then its usage is kept.
    pub fn evict_all(&self) {
        let mut maps = self.maps();
        self.epoch.fetch_add(1, Ordering::Release);
        maps.evict_all();
    }

    /// Whether the reverse path filter drops redirected IPv4 requests. Then IPv4 requests from other hosts stay in user space.
    pub fn is_reverse_path_filtered(&self) -> bool {
        self.is_reverse_path_filtered.load(Ordering::Relaxed)
    }

    /// Reads again the sysctls that [`DataPath::attach`] set, and evicts all flows when the reverse path filter was turned on.
    /// To be called once a second.
    pub fn check_sysctls(&self) {
        let is_reverse_path_filtered = sysctl::is_reverse_path_filtered();
        if !self
            .is_reverse_path_filtered
            .swap(is_reverse_path_filtered, Ordering::Relaxed)
            && is_reverse_path_filtered
        {
            self.evict_all();
        }
    }

    /// Takes the counts since the last call that returned a value. `None` when the maps can't be read now: the next value
    /// includes these counts.
    pub fn take_totals(&self) -> Option<Totals> {
        self.maps().take_totals()
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the compiled object and creates its maps.
fn open_object(max_flows: u32) -> Result<Ebpf, Error> {
    Ok(EbpfLoader::new()
        .map_max_entries("requests", max_flows)
        .map_max_entries("replies", max_flows)
        .load(OBJECT)?)
}

/// Loads the program into the kernel, which verifies it.
fn load(object: &mut Ebpf) -> Result<&mut SchedClassifier, Error> {
    let program: &mut SchedClassifier = object
        .program_mut(PROGRAM)
        .and_then(|program| program.try_into().ok())
        .ok_or(Error::Missing(PROGRAM))?;
    program.load()?;
    Ok(program)
}

fn attach(object: &mut Ebpf, devices: &[String]) -> Result<(), Error> {
    let program = load(object)?;
    for device in devices {
        let before_others = TcAttachOptions::TcxOrder(LinkOrder::first());
        program
            .attach_with_options(device, TcAttachType::Ingress, before_others)
            .map_err(|error| Error::Attach {
                device: device.clone(),
                error,
            })?;
    }
    Ok(())
}

/// The program's name in the object.
const PROGRAM: &str = "datagrams";
/// Compiled from `bpf/udp.c` by `make bpf`, and kept in the repository: users need no clang.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/udp.o");
