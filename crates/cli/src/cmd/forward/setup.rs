//! The whole configuration of one run of `peername forward`, validated before anything is opened.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use peername_daemon::listeners::self_connect::reached_listener;
use peername_daemon::listeners::{self, BoundAddresses, ListenPlan, ListenerIds, TRANSPORTS};
use peername_daemon::options::{Origin, Table};
use peername_daemon::reload;
use peername_daemon::reload::client_lists::ClientPolicies;
use peername_daemon::reload::file_watch::Fingerprints;
use peername_daemon::usage::{ErrorCollector, UsageError};
use peername_proto::HostAddress;
use peername_proxy::forward::ForwardService;
use peername_server::own_addresses::OwnAddresses;
use peername_server::workers::services::Services;

use super::options::{Args, Forward};
use crate::config_file::{Configuration, Kind, Problems};

/// The validated configuration.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(super) common: reload::Common,
    groups: Vec<Group>,
}

/// The listeners of a table, and their service.
#[derive(Debug)]
struct Group {
    sockets: ListenPlan,
    service: Arc<ForwardService>,
    origin: Origin,
}

impl Setup {
    /// Reads the options, or the file that they name, and resolves names.
    pub(super) fn load(args: &Args, files: &mut Fingerprints) -> Result<Self, UsageError> {
        let command_line = Configuration {
            forward: vec![Table::from_command_line(args.forward.clone())],
            ..Configuration::default()
        };
        let file = args.source.config.as_deref();
        Configuration::load(file, Kind::Forward, files, command_line)
            .with_command_line(&args.process)
            .validate(Self::new)
            .map_err(UsageError::from_error)
    }

    /// Validates the tables of a file, or the options of a command line.
    pub(crate) fn new(mut config: Configuration) -> Result<Self, Problems> {
        // One worker is enough for most senders.
        let common = config.take_common(1);
        let mut problems = Problems::default();
        let groups = problems.plan_tables(&config.forward, Group::new);
        let setup = Self { common, groups };
        problems.0.extend(setup.problems(|_| false));
        problems.into_result()?;
        Ok(setup)
    }

    /// Validates again with this host's addresses, which only the kernel knows.
    pub(super) fn check_at(&self, host: &OwnAddresses) -> Result<(), UsageError> {
        let problems = self.problems(|ip| host.kind_of(ip) == Some(HostAddress::Own));
        Problems(problems)
            .into_result()
            .map_err(UsageError::from_error)
    }

    /// Addresses that are given twice, and targets that are listeners of the same protocol.
    fn problems(&self, is_own: impl Fn(IpAddr) -> bool + Copy) -> Vec<String> {
        let mut problems = Vec::new();
        let mut taken = HashSet::new();
        for group in &self.groups {
            for (_, addr) in group.sockets.listeners().filter(|key| !taken.insert(*key)) {
                let text = format!("--listen {addr} is given twice");
                problems.push(group.origin.locate(&text));
            }
        }
        for group in &self.groups {
            let target = group.service.target.0;
            let reaches_listener = |transport| {
                let addrs = taken
                    .iter()
                    .filter(|(other, _)| *other == transport)
                    .map(|&(_, addr)| addr)
                    .collect();
                let is_forwarded = group
                    .sockets
                    .listeners()
                    .any(|(other, _)| other == transport);
                is_forwarded && reached_listener(&addrs, target, is_own).is_some()
            };
            if TRANSPORTS.into_iter().any(reaches_listener) {
                let text = format!("--to {target}: it would connect to itself");
                problems.push(group.origin.locate(&text));
            }
        }
        problems
    }

    pub(super) fn listen_plans(&self) -> Vec<ListenPlan> {
        self.groups
            .iter()
            .map(|group| group.sockets.clone())
            .collect()
    }

    /// The service of each listener.
    pub(super) fn services(&self, ids: &ListenerIds) -> Services<ForwardService> {
        self.groups
            .iter()
            .flat_map(|group| {
                group
                    .sockets
                    .listeners()
                    .filter_map(move |key| Some((*ids.get(&key)?, Arc::clone(&group.service))))
            })
            .collect()
    }

    /// Which clients may connect to each listener.
    pub(super) fn client_policies(&self, bound: &BoundAddresses) -> ClientPolicies {
        let mut policies = ClientPolicies::default();
        for group in &self.groups {
            policies.add(group.sockets.listeners(), bound, &group.service.clients);
        }
        policies
    }

    /// Whether a list of clients is in a file.
    pub(super) fn has_list_files(&self) -> bool {
        self.groups
            .iter()
            .any(|group| group.service.clients.files().next().is_some())
    }

    /// The servers, for the log.
    pub(super) fn targets(&self) -> String {
        let mut targets: Vec<_> = self
            .groups
            .iter()
            .map(|group| group.service.target.0.to_string())
            .collect();
        targets.dedup();
        targets.join(", ")
    }
}

impl reload::Setup for Setup {
    fn common(&self) -> &reload::Common {
        &self.common
    }

    fn summary(&self) -> String {
        listeners::summary(self.groups.iter().map(|group| &group.sockets))
    }
}

impl Group {
    fn new(table: &Table<Forward>) -> Result<Self, UsageError> {
        let mut errors = ErrorCollector::default();
        let sockets = errors.note(table.options().listen_plan());
        let service = errors.note(table.options().service());
        let (sockets, service) = errors.into_result(sockets.zip(service))?;
        Ok(Self {
            sockets,
            service: Arc::new(service),
            origin: table.origin.clone(),
        })
    }
}
