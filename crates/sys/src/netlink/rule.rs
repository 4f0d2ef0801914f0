//! Policy routing rules: `ip rule`.

use std::fmt;
use std::net::IpAddr;

use rtnetlink::IpVersion;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{
    RuleAction, RuleAttribute, RuleFlags, RuleMessage, RulePortRange,
};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};

use super::handle::{Family, Netlink, collect_dump, with_call};
use crate::{Result, Transport};

/// A policy routing rule: packets that match the selector are routed by the table. Displayed in the syntax of `ip rule`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The packets that match.
    pub selector: Selector,
    /// The table that routes them.
    pub table: u32,
    /// Position in the list: lower comes first, 0 is the kernel's `local` table, 32766 is `main`.
    pub priority: u32,
    /// The origin of the rule (FRA_PROTOCOL, since Linux 4.17).
    pub protocol: u8,
}

/// The packets that a rule selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Packets that this host sends from these addresses (`iif lo`), as opposed to forwarded ones.
    From {
        /// An address of the source network `from/prefix_len`.
        from: IpAddr,
        /// Length of the prefix, in bits.
        prefix_len: u8,
        /// Which of these packets the rule selects.
        traffic: Traffic,
    },
    /// Packets with exactly this firewall mark.
    Mark {
        /// The address family.
        family: Family,
        /// The mark, which is not 0.
        mark: u32,
    },
}

/// Which packets of a source a rule selects. Before Linux 4.17, only [`Traffic::Any`] is supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Traffic {
    /// All packets.
    Any,
    /// Packets of this protocol from this port, which is neither 0 nor 65535.
    Port(Transport, u16),
    /// ICMP or ICMPv6, by which a closed UDP port is reported.
    Icmp,
}

impl Rule {
    /// The rule's address family.
    pub fn family(&self) -> Family {
        match self.selector {
            Selector::From { from, .. } if from.is_ipv4() => Family::V4,
            Selector::From { .. } => Family::V6,
            Selector::Mark { family, .. } => family,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} lookup {} proto {}",
            self.priority, self.selector, self.table, self.protocol
        )
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::From {
                from,
                prefix_len,
                traffic,
            } => {
                write!(f, "from {from}/{prefix_len} iif lo")?;
                match traffic {
                    Traffic::Port(transport, port) => {
                        write!(f, " ipproto {} sport {port}", transport.name())
                    }
                    Traffic::Icmp if from.is_ipv4() => f.write_str(" ipproto icmp"),
                    Traffic::Icmp => f.write_str(" ipproto ipv6-icmp"),
                    Traffic::Any => Ok(()),
                }
            }
            Self::Mark { mark, .. } => write!(f, "from all fwmark {mark:#x}"),
        }
    }
}

impl Netlink {
    /// The rules with this protocol number, of both families, in the kernel's order.
    ///
    /// Rules that [`Rule`] cannot represent are omitted: they are not peername's, whatever their
    /// number.
    pub async fn rules(&self, protocol: u8) -> Result<Vec<Rule>> {
        let mut found = Vec::new();
        for (version, family) in FAMILIES {
            let dump = self.handle.rule().get(version).execute();
            let messages = collect_dump(dump, "RTM_GETRULE").await?;
            found.extend(
                messages
                    .iter()
                    // Without IPv6 the kernel answers a request for its rules with those of IPv4.
                    .filter(|message| message.header.family == family)
                    .filter_map(from_message),
            );
        }
        found.retain(|rule| rule.protocol == protocol);
        Ok(found)
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// EEXIST when the same rule exists already (NLM_F_EXCL): nothing was changed. EPERM without CAP_NET_ADMIN.
    pub async fn add_rule(&self, rule: &Rule) -> Result<()> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = to_message(rule);
        with_call(request.execute().await, "RTM_NEWRULE")
    }

    /// Deletes the first rule that has these attributes. An attribute that the request lacks matches any value, so delete
    /// narrower rules before one with [`Traffic::Any`].
    ///
    /// # Errors
    ///
    /// ENOENT when it does not exist; EPERM without CAP_NET_ADMIN.
    pub async fn delete_rule(&self, rule: &Rule) -> Result<()> {
        let request = self.handle.rule().del(to_message(rule));
        with_call(request.execute().await, "RTM_DELRULE")
    }
}

const FAMILIES: [(IpVersion, AddressFamily); 2] = [
    (IpVersion::V4, AddressFamily::Inet),
    (IpVersion::V6, AddressFamily::Inet6),
];

fn to_message(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match rule.family() {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(RouteProtocol::from(rule.protocol)),
    ];
    match rule.selector {
        Selector::From {
            from,
            prefix_len,
            traffic,
        } => {
            message.header.src_len = prefix_len;
            message.attributes.extend([
                RuleAttribute::Source(from),
                RuleAttribute::Iifname("lo".to_owned()),
            ]);
            message.attributes.extend(traffic_attributes(traffic, from));
        }
        Selector::Mark { mark, .. } => message.attributes.extend([
            RuleAttribute::FwMark(mark),
            RuleAttribute::FwMask(EVERY_BIT),
        ]),
    }
    message
}

/// The attributes that limit a rule for the source `from` to this traffic.
fn traffic_attributes(traffic: Traffic, from: IpAddr) -> Vec<RuleAttribute> {
    let icmp = if from.is_ipv4() {
        IpProtocol::Icmp
    } else {
        ICMP_V6
    };
    match traffic {
        Traffic::Any => Vec::new(),
        Traffic::Icmp => vec![RuleAttribute::IpProtocol(icmp)],
        Traffic::Port(transport, port) => vec![
            RuleAttribute::IpProtocol(match transport {
                Transport::Tcp => IpProtocol::Tcp,
                Transport::Udp => IpProtocol::Udp,
            }),
            RuleAttribute::SourcePortRange(RulePortRange {
                start: port,
                end: port,
            }),
        ],
    }
}

/// `None` for a rule that a [`Selector`] can't represent.
pub(super) fn from_message(message: &RuleMessage) -> Option<Rule> {
    let header = &message.header;
    let has_other_selector =
        header.flags.contains(RuleFlags::Invert) || header.dst_len > 0 || header.tos > 0;
    if has_other_selector || header.action != RuleAction::ToTable {
        return None;
    }
    let attributes = Attributes::read(&message.attributes)?;
    let selector = match (attributes.from, attributes.mark) {
        (Some(from), None) if attributes.is_from_this_host => Selector::From {
            from,
            prefix_len: header.src_len,
            traffic: traffic(attributes.ip_protocol, attributes.port)?,
        },
        (None, Some(mark)) if attributes.selects_by_mark_only() => Selector::Mark {
            family: match header.family {
                AddressFamily::Inet6 => Family::V6,
                _ => Family::V4,
            },
            mark,
        },
        _ => return None,
    };
    Some(Rule {
        selector,
        table: attributes.table?,
        priority: attributes.priority?,
        protocol: RouteProtocol::into(attributes.protocol?),
    })
}

/// The attributes of a rule message that a [`Rule`] is made of.
#[derive(Default)]
struct Attributes {
    from: Option<IpAddr>,
    is_from_this_host: bool,
    ip_protocol: Option<IpProtocol>,
    port: Option<RulePortRange>,
    mark: Option<u32>,
    mask: Option<u32>,
    table: Option<u32>,
    priority: Option<u32>,
    protocol: Option<RouteProtocol>,
}

impl Attributes {
    /// `None` if an attribute selects packets by a property that no [`Selector`] has. Attributes that select nothing are
    /// ignored.
    fn read(message_attributes: &[RuleAttribute]) -> Option<Self> {
        let mut read = Self::default();
        for attribute in message_attributes {
            match attribute {
                RuleAttribute::Source(address) => read.from = Some(*address),
                RuleAttribute::Iifname(name) if name == "lo" => read.is_from_this_host = true,
                RuleAttribute::SourcePortRange(range) => read.port = Some(*range),
                RuleAttribute::IpProtocol(number) => read.ip_protocol = Some(*number),
                RuleAttribute::FwMark(number) => read.mark = Some(*number),
                RuleAttribute::FwMask(number) => read.mask = Some(*number),
                RuleAttribute::Table(number) => read.table = Some(*number),
                RuleAttribute::Priority(number) => read.priority = Some(*number),
                RuleAttribute::Protocol(number) => read.protocol = Some(*number),
                RuleAttribute::Destination(_)
                | RuleAttribute::Iifname(_)
                | RuleAttribute::Oifname(_)
                | RuleAttribute::DestinationPortRange(_)
                | RuleAttribute::UidRange(_)
                | RuleAttribute::TunId(_)
                | RuleAttribute::L3MDev(true) => return None,
                _ => {}
            }
        }
        Some(read)
    }

    /// Whether the rule compares the whole mark, and nothing else.
    fn selects_by_mark_only(&self) -> bool {
        let has_any_traffic = traffic(self.ip_protocol, self.port) == Some(Traffic::Any);
        self.mask == Some(EVERY_BIT) && !self.is_from_this_host && has_any_traffic
    }
}

/// `None` for limits that [`Traffic`] can't represent.
fn traffic(protocol: Option<IpProtocol>, ports: Option<RulePortRange>) -> Option<Traffic> {
    let transport = match (protocol, ports) {
        (None, None) => return Some(Traffic::Any),
        (Some(IpProtocol::Icmp | ICMP_V6), None) => return Some(Traffic::Icmp),
        (Some(IpProtocol::Tcp), _) => Transport::Tcp,
        (Some(IpProtocol::Udp), _) => Transport::Udp,
        _ => return None,
    };
    ports
        .filter(|range| range.start == range.end)
        .map(|range| Traffic::Port(transport, range.start))
}

/// IPPROTO_ICMPV6.
const ICMP_V6: IpProtocol = IpProtocol::Other(58);
/// The mask of a rule that compares the whole firewall mark.
const EVERY_BIT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const FROM_LOOPBACK: Rule = Rule {
        selector: Selector::From {
            from: IpAddr::V4(Ipv4Addr::LOCALHOST),
            prefix_len: 8,
            traffic: Traffic::Any,
        },
        table: 100,
        priority: 200,
        protocol: 211,
    };

    #[test]
    fn only_rules_that_a_selector_represents_are_read() {
        assert_eq!(
            from_message(&to_message(&FROM_LOOPBACK)),
            Some(FROM_LOOPBACK)
        );
        let changes: [fn(&mut RuleMessage); 5] = [
            |rule| rule.header.flags |= RuleFlags::Invert,
            |rule| rule.header.dst_len = 8,
            |rule| rule.header.tos = 16,
            |rule| rule.header.action = RuleAction::Blackhole,
            |rule| {
                rule.attributes
                    .push(RuleAttribute::Oifname("eth0".to_owned()));
            },
        ];
        for change in changes {
            let mut message = to_message(&FROM_LOOPBACK);
            change(&mut message);
            assert_eq!(from_message(&message), None, "{message:?}");
        }
        let selects_nothing = RuleAttribute::SuppressPrefixLen(u32::MAX);
        let mut message = to_message(&FROM_LOOPBACK);
        message.attributes.push(selects_nothing);
        assert_eq!(from_message(&message), Some(FROM_LOOPBACK));
    }

    #[test]
    fn rule_for_a_mark_has_no_other_selector() {
        let of_mark = Rule {
            selector: Selector::Mark {
                family: Family::V6,
                mark: 7,
            },
            ..FROM_LOOPBACK
        };
        assert_eq!(from_message(&to_message(&of_mark)).as_ref(), Some(&of_mark));
        for attribute in [
            RuleAttribute::Iifname("eth0".to_owned()),
            RuleAttribute::Iifname("lo".to_owned()),
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::IpProtocol(IpProtocol::Icmp),
        ] {
            let mut message = to_message(&of_mark);
            message.attributes.push(attribute);
            assert_eq!(from_message(&message), None, "{message:?}");
        }
    }
}
