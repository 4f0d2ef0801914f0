//! The maps of the kernel's program: installed flows, ports and totals.

use std::collections::HashMap;
use std::time::Duration;

use aya::Ebpf;
use aya::maps::{Array, HashMap as EbpfHashMap, MapData, MapError, PerCpuArray};

use super::error::Error;
use crate::flow::{Flow, HeaderFormat};
use crate::layout::{
    AddressPairKey, FlowCounters, PORT_BACKEND, PORT_PROXY_V2, PORT_SPP, RequestKey, RewriteValue,
};
use crate::totals::Totals;
use crate::usage::Usage;

/// Identifies a flow that was installed in the kernel: its keys in both maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstalledFlow {
    request: RequestKey,
    reply: AddressPairKey,
}

pub(super) struct Maps {
    requests: EbpfHashMap<MapData, RequestKey, RewriteValue>,
    replies: EbpfHashMap<MapData, AddressPairKey, RewriteValue>,
    ports: Array<MapData, u8>,
    totals: PerCpuArray<MapData, u64>,
    /// The part of `totals` that was reported already.
    reported: Totals,
    /// Installed flows, and the final usage of those that [`Maps::evict_all`] evicted.
    flows: HashMap<InstalledFlow, Option<Usage>>,
    /// The number of times that a flow was installed.
    installations: u64,
}

impl Maps {
    pub(super) fn new(object: &mut Ebpf) -> Result<Self, Error> {
        Ok(Self {
            requests: take_map(object, "requests")?,
            replies: take_map(object, "replies")?,
            ports: take_map(object, "ports")?,
            totals: take_map(object, "totals")?,
            reported: Totals::default(),
            flows: HashMap::new(),
            installations: 0,
        })
    }

    /// Installs a flow; `None` if it is installed already or the maps are full.
    pub(super) fn install(&mut self, flow: &Flow<'_>) -> Option<InstalledFlow> {
        let encoded = flow.encode();
        let installed = InstalledFlow {
            request: encoded.request_key,
            reply: encoded.reply_key,
        };
        let role = match flow.header_format()? {
            HeaderFormat::ProxyV2 => PORT_PROXY_V2,
            HeaderFormat::Spp => PORT_SPP,
        };
        if self.flows.contains_key(&installed) {
            return None;
        }
        self.installations += 1;
        let number = self.installations;
        // Replies first: the first request that the kernel carries may be answered at once.
        let inserted = self
            .replies
            .insert(installed.reply, encoded.reply.encode(number), 0)
            .and_then(|()| {
                self.requests
                    .insert(installed.request, encoded.request.encode(number), 0)
            })
            .and_then(|()| self.mark_port(flow.upstream.to.port(), PORT_BACKEND))
            .and_then(|()| self.mark_port(flow.downstream.to.port(), role));
        if inserted.is_err() {
            self.delete(&installed);
            return None;
        }
        self.flows.insert(installed, None);
        Some(installed)
    }

    pub(super) fn usage(&self, flow: &InstalledFlow) -> Usage {
        if let Some(Some(usage)) = self.flows.get(flow) {
            return *usage;
        }
        let requests = decode_counters(self.requests.get(&flow.request, 0));
        let replies = decode_counters(self.replies.get(&flow.reply, 0));
        Usage {
            requests: requests.datagrams,
            request_bytes: requests.bytes,
            replies: replies.datagrams,
            reply_bytes: replies.bytes,
            last_used: Duration::from_nanos(requests.last_used.max(replies.last_used)),
        }
    }

    /// Removes a flow, evicted or not, and returns its usage. A datagram that the program carries meanwhile is in the totals only:
    /// the program may still count in an entry that is deleted.
    pub(super) fn remove(&mut self, flow: &InstalledFlow) -> Usage {
        let usage = self.usage(flow);
        if let Some(None) = self.flows.remove(flow) {
            self.delete(flow);
        }
        usage
    }

    pub(super) fn is_installed(&self, flow: &InstalledFlow) -> bool {
        matches!(self.flows.get(flow), Some(None))
    }

    /// The number of flows that are installed and not evicted.
    pub(super) fn installed_count(&self) -> usize {
        self.flows.values().filter(|usage| usage.is_none()).count()
    }

    /// Evicts all flows from the kernel. The usage of each is kept until [`Maps::remove`].
    pub(super) fn evict_all(&mut self) {
        let installed: Vec<_> = self
            .flows
            .iter()
            .filter(|(_, usage)| usage.is_none())
            .map(|(flow, _)| *flow)
            .collect();
        for flow in installed {
            let usage = self.usage(&flow);
            self.delete(&flow);
            self.flows.insert(flow, Some(usage));
        }
    }

    /// Takes the counts since the last call that returned a value. `None` when they can't be read now: the next value
    /// includes them.
    pub(super) fn take_totals(&mut self) -> Option<Totals> {
        let now = Totals::read(|index| {
            let per_cpu = self.totals.get(&index, 0).ok()?;
            Some(per_cpu.iter().sum())
        })?;
        Some(self.reported.advance_to(now))
    }

    /// Adds a role to a port. Roles are never removed: a marked port costs its datagrams one lookup.
    fn mark_port(&mut self, port: u16, role: u8) -> Result<(), MapError> {
        let port = u32::from(port);
        let roles = self.ports.get(&port, 0)?;
        self.ports.set(port, roles | role, 0)
    }

    /// Deletes a flow's entries. A missing entry is no error.
    fn delete(&mut self, flow: &InstalledFlow) {
        let _ = self.requests.remove(&flow.request);
        let _ = self.replies.remove(&flow.reply);
    }
}

/// The counters of one direction of a flow; zero where the kernel has no entry.
fn decode_counters(value: Result<RewriteValue, MapError>) -> FlowCounters {
    value.map_or_else(
        |_| FlowCounters::default(),
        |value| FlowCounters::decode(&value),
    )
}

fn take_map<T: TryFrom<aya::maps::Map>>(object: &mut Ebpf, name: &'static str) -> Result<T, Error> {
    let map = object.take_map(name).ok_or(Error::Missing(name))?;
    T::try_from(map).map_err(|_| Error::Missing(name))
}
