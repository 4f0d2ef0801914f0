//! Policy rules: `ip rule`.

use std::fmt;
use std::net::IpAddr;

use rtnetlink::IpVersion;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol};

use super::{Family, Netlink, Transport, all, named, protocol};
use crate::Result;

/// "What this host sends from these addresses is routed by that table."
///
/// All rules here have `iif lo`, which for the kernel means packets that this host makes itself, as
/// opposed to those it forwards. Displayed as `ip rule` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rule {
    /// Source addresses: `from/prefix`.
    pub from: IpAddr,
    /// Length of the prefix, in bits.
    pub prefix: u8,
    /// Only what is sent by this protocol from this port. Since Linux 4.17.
    pub port: Option<(Transport, u16)>,
    /// The table that routes what matches.
    pub table: u32,
    /// Where in the list: lower comes first, 0 is the kernel's own `local` table, 32766 is `main`.
    pub priority: u32,
    /// Who made it (FRA_PROTOCOL, since Linux 4.17).
    pub protocol: u8,
}

impl Rule {
    /// The family it belongs to.
    pub fn family(&self) -> Family {
        if self.from.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: from {}/{} iif lo",
            self.priority, self.from, self.prefix
        )?;
        if let Some((transport, port)) = self.port {
            write!(f, " ipproto {} sport {port}", transport.name())?;
        }
        write!(f, " lookup {} proto {}", self.table, self.protocol)
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
    message.header.src_len = rule.prefix;
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Source(rule.from),
        RuleAttribute::Iifname("lo".to_owned()),
        RuleAttribute::Priority(rule.priority),
        RuleAttribute::Table(rule.table),
        RuleAttribute::Protocol(protocol(rule.protocol)),
    ];
    if let Some((transport, port)) = rule.port {
        let range = RulePortRange {
            start: port,
            end: port,
        };
        message
            .attributes
            .push(RuleAttribute::IpProtocol(match transport {
                Transport::Tcp => IpProtocol::Tcp,
                Transport::Udp => IpProtocol::Udp,
            }));
        message
            .attributes
            .push(RuleAttribute::SourcePortRange(range));
    }
    message
}

/// `None` for a rule that is not `from SOURCE iif lo [ipproto tcp|udp sport PORT] lookup TABLE`.
fn read(message: &RuleMessage) -> Option<Rule> {
    let (mut from, mut transport, mut port, mut table, mut priority, mut made_by) =
        (None, None, None, None, None, None);
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
            RuleAttribute::Table(number) => table = Some(*number),
            RuleAttribute::Priority(number) => priority = Some(*number),
            RuleAttribute::Protocol(by) => made_by = Some(*by),
            _ => {}
        }
    }
    from_this_host.then_some(Rule {
        from: from?,
        prefix: message.header.src_len,
        port: transport.zip(port),
        table: table?,
        priority: priority?,
        protocol: RouteProtocol::into(made_by?),
    })
}
