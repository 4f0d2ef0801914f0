//! Policy rules: `ip rule`.

use std::fmt;
use std::net::IpAddr;

use rtnetlink::IpVersion;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};

use super::{Family, Netlink, Transport, all, named, protocol};
use crate::Result;

/// "What is selected so is routed by that table." Displayed as `ip rule` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Which packets.
    pub selector: Selector,
    /// The table that routes what matches.
    pub table: u32,
    /// Where in the list: lower comes first, 0 is the kernel's own `local` table, 32766 is `main`.
    pub priority: u32,
    /// Who made it (FRA_PROTOCOL, since Linux 4.17).
    pub protocol: u8,
}

/// What a rule selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Selector {
    /// What this host itself sends from these addresses (`iif lo`), as opposed to what it forwards.
    From {
        /// Source addresses: `from/prefix`.
        from: IpAddr,
        /// Length of the prefix, in bits.
        prefix: u8,
        /// Only what is sent by this protocol from this port. Since Linux 4.17.
        port: Option<(Transport, u16)>,
    },
    /// What carries exactly this firewall mark.
    Mark {
        /// Of which family.
        family: Family,
        /// The mark, which is not 0.
        mark: u32,
    },
}

impl Rule {
    /// The family it belongs to.
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
            Self::From { from, prefix, port } => {
                write!(f, "from {from}/{prefix} iif lo")?;
                match port {
                    Some((transport, port)) => {
                        write!(f, " ipproto {} sport {port}", transport.name())
                    }
                    None => Ok(()),
                }
            }
            Self::Mark { mark, .. } => write!(f, "from all fwmark {mark:#x}"),
        }
    }
}

impl Netlink {
    /// The rules that carry this protocol number, of both families, in the kernel's order.
    ///
    /// Rules of a shape that [`Rule`] cannot say are left out: they are not ours, whatever their
    /// number.
    pub async fn rules(&self, made_by: u8) -> Result<Vec<Rule>> {
        let mut found = Vec::new();
        for (version, family) in FAMILIES {
            let dump = self.handle.rule().get(version).execute();
            let messages = all(dump, "RTM_GETRULE").await?;
            // Without IPv6 the kernel answers a question for its rules with those of IPv4.
            let of_family = messages.into_iter().filter(|m| m.header.family == family);
            found.extend(of_family.filter_map(|message| read(&message)));
        }
        found.retain(|rule| rule.protocol == made_by);
        Ok(found)
    }

    /// Adds a rule. EEXIST when the same rule is there already (NLM_F_EXCL): nothing was changed.
    pub async fn add_rule(&self, rule: &Rule) -> Result<()> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = write(rule);
        named(request.execute().await, "RTM_NEWRULE")
    }

    /// Deletes this very rule. ENOENT when it is not there.
    pub async fn delete_rule(&self, rule: &Rule) -> Result<()> {
        let request = self.handle.rule().del(write(rule));
        named(request.execute().await, "RTM_DELRULE")
    }
}

const FAMILIES: [(IpVersion, AddressFamily); 2] = [
    (IpVersion::V4, AddressFamily::Inet),
    (IpVersion::V6, AddressFamily::Inet6),
];

fn write(rule: &Rule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = match rule.family() {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    };
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(protocol(rule.protocol)),
    ];
    match rule.selector {
        Selector::From { from, prefix, port } => {
            message.header.src_len = prefix;
            message.attributes.extend([
                RuleAttribute::Source(from),
                RuleAttribute::Iifname("lo".to_owned()),
            ]);
            message
                .attributes
                .extend(port.into_iter().flat_map(of_port));
        }
        Selector::Mark { mark, .. } => message.attributes.extend([
            RuleAttribute::FwMark(mark),
            RuleAttribute::FwMask(WHOLE_MARK),
        ]),
    }
    message
}

fn of_port((transport, port): (Transport, u16)) -> [RuleAttribute; 2] {
    let range = RulePortRange {
        start: port,
        end: port,
    };
    let protocol = match transport {
        Transport::Tcp => IpProtocol::Tcp,
        Transport::Udp => IpProtocol::Udp,
    };
    [
        RuleAttribute::IpProtocol(protocol),
        RuleAttribute::SourcePortRange(range),
    ]
}

/// `None` for a rule that a [`Selector`] can't say.
fn read(message: &RuleMessage) -> Option<Rule> {
    let (mut from, mut transport, mut port, mut table, mut priority, mut made_by) =
        (None, None, None, None, None, None);
    let (mut mark, mut mask) = (None, None);
    let mut from_this_host = false;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(address) => from = Some(*address),
            RuleAttribute::Iifname(name) => from_this_host = name == "lo",
            RuleAttribute::SourcePortRange(range) if range.start == range.end => {
                port = Some(range.start);
            }
            RuleAttribute::IpProtocol(IpProtocol::Tcp) => transport = Some(Transport::Tcp),
            RuleAttribute::IpProtocol(IpProtocol::Udp) => transport = Some(Transport::Udp),
            RuleAttribute::FwMark(number) => mark = Some(*number),
            RuleAttribute::FwMask(number) => mask = Some(*number),
            RuleAttribute::Table(number) => table = Some(*number),
            RuleAttribute::Priority(number) => priority = Some(*number),
            RuleAttribute::Protocol(by) => made_by = Some(*by),
            _ => {}
        }
    }
    let selector = match (from, mark) {
        (Some(from), None) if from_this_host => Selector::From {
            from,
            prefix: message.header.src_len,
            port: transport.zip(port),
        },
        (None, Some(mark)) if mask == Some(WHOLE_MARK) => Selector::Mark {
            family: match message.header.family {
                AddressFamily::Inet6 => Family::V6,
                _ => Family::V4,
            },
            mark,
        },
        _ => return None,
    };
    Some(Rule {
        selector,
        table: table?,
        priority: priority?,
        protocol: RouteProtocol::into(made_by?),
    })
}

const WHOLE_MARK: u32 = u32::MAX;
