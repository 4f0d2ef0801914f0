//! Notifications about what a reply path depends on: rules, local routes, the loopback interface.

use rtnetlink::MulticastGroup;
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::route::RouteType;

use super::handle::LOOPBACK;
use super::monitor::Monitor;
use super::{route, rule};
use crate::Result;

/// Subscribes to changes of rules, of local routes in all tables, and of the loopback interface. Needs no capability.
pub type RoutingMonitor = Monitor<RoutingChange>;

/// A change of the routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutingChange {
    /// A rule or a local default route was removed.
    Removed {
        /// The table that the rule looked up, or that the route was in.
        table: u32,
        /// The netlink port of the process that did it, usually its process id; 0 is the kernel's.
        port: u32,
    },
    /// A rule or a local route was added, another one was removed, the loopback interface changed, or notifications were lost
    /// (ENOBUFS).
    Other,
}

impl RoutingMonitor {
    /// Subscribes to changes from now on. Must be called inside a tokio runtime.
    pub fn subscribe() -> Result<Self> {
        Self::subscribe_to(BIND_CALL, &GROUPS, change)
    }
}

/// `None` for changes of other routes, which a router makes all the time, and of other interfaces.
fn change(notification: &NetlinkMessage<RouteNetlinkMessage>) -> Option<RoutingChange> {
    let NetlinkPayload::InnerMessage(message) = &notification.payload else {
        return Some(RoutingChange::Other);
    };
    let removal_from = |table: Option<u32>| {
        let port = notification.header.port_number;
        table.map_or(RoutingChange::Other, |table| RoutingChange::Removed {
            table,
            port,
        })
    };
    match message {
        RouteNetlinkMessage::DelRule(rule) => Some(removal_from(
            rule::from_message(rule).map(|rule| rule.table),
        )),
        RouteNetlinkMessage::NewRule(_) => Some(RoutingChange::Other),
        RouteNetlinkMessage::DelRoute(route) => {
            let table = route::from_message(route).map(|route| route.table);
            (route.header.kind == RouteType::Local).then(|| removal_from(table))
        }
        RouteNetlinkMessage::NewRoute(route) => {
            (route.header.kind == RouteType::Local).then_some(RoutingChange::Other)
        }
        // The kernel does not notify of the IPv4 routes that are lost when an interface goes down.
        RouteNetlinkMessage::NewLink(link) => {
            (link.header.index == LOOPBACK).then_some(RoutingChange::Other)
        }
        _ => None,
    }
}

const BIND_CALL: &str = "bind(NETLINK_ROUTE, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV4_RULE, …)";
const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];
