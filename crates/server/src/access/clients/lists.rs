//! The allow list and the deny list of clients, and the list of peers that send health checks.

use std::net::IpAddr;

use super::refusal::ClientRefusal;
use crate::access::network_set::{FileContent, NetworkListError, NetworkSet};

/// The values of the options that list networks.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// `--allow-client`: the clients that may connect; empty for all.
    pub allow: Vec<String>,
    /// `--deny-client`: the clients that may not connect.
    pub deny: Vec<String>,
    /// `--health-checks-from`: the peers that may name themselves as the client; empty for those on this host.
    pub health_checks: Vec<String>,
}

/// The networks of clients that may connect, of clients that may not, and of peers that send health checks.
#[derive(Debug, Default)]
pub struct ClientLists {
    /// `None`: every client may connect that is not denied.
    allow: Option<NetworkSet>,
    deny: NetworkSet,
    /// `None`: the peers on this host.
    health_checks: Option<NetworkSet>,
}

impl ClientLists {
    /// Reads the values of the options. A file of the deny list may be empty: there may be no ban yet. A file of the allow list
    /// may not: no client could connect.
    pub fn read(options: &ListOptions) -> Result<Self, NetworkListError> {
        Ok(Self {
            allow: read_optional("--allow-client", &options.allow, FileContent::Required)?,
            deny: NetworkSet::read("--deny-client", &options.deny, FileContent::Optional)?,
            health_checks: read_optional(
                "--health-checks-from",
                &options.health_checks,
                FileContent::Optional,
            )?,
        })
    }

    /// Refuses clients of the deny list, which wins over the allow list, whichever has the longer prefix.
    pub(super) fn check_denied(&self, client: IpAddr) -> Result<(), ClientRefusal> {
        match self.deny.longest_match(client) {
            Some(by) => Err(ClientRefusal::Denied { by }),
            None => Ok(()),
        }
    }

    /// Refuses clients that are not on the allow list, if there is one.
    pub(super) fn check_allowed(&self, client: IpAddr) -> Result<(), ClientRefusal> {
        match &self.allow {
            Some(allow) if !allow.contains(client) => Err(ClientRefusal::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Whether this peer may name itself as the client, as health checks do.
    pub(super) fn is_health_checker(&self, peer: IpAddr, is_own: impl Fn(IpAddr) -> bool) -> bool {
        match &self.health_checks {
            Some(listed) => listed.contains(peer),
            None => is_own(peer),
        }
    }

    /// The number of networks that are denied.
    pub fn denied(&self) -> usize {
        self.deny.len()
    }

    /// The number of networks that are allowed; `None` if there is no allow list.
    pub fn allowed(&self) -> Option<usize> {
        self.allow.as_ref().map(NetworkSet::len)
    }
}

/// Reads a list; `None` if its option is not given.
fn read_optional(
    option: &'static str,
    values: &[String],
    files: FileContent,
) -> Result<Option<NetworkSet>, NetworkListError> {
    if values.is_empty() {
        return Ok(None);
    }
    NetworkSet::read(option, values, files).map(Some)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::fs;

    use allocation_counter::measure;
    use tempfile::NamedTempFile;

    use super::*;

    fn read(allow: &[&str], deny: &[&str]) -> Result<ClientLists, NetworkListError> {
        let owned = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect();
        ClientLists::read(&ListOptions {
            allow: owned(allow),
            deny: owned(deny),
            ..ListOptions::default()
        })
    }

    fn check(allow: &[&str], deny: &[&str], client: &str) -> Result<(), ClientRefusal> {
        let (lists, client) = (read(allow, deny).unwrap(), client.parse().unwrap());
        lists.check_denied(client)?;
        lists.check_allowed(client)
    }

    fn denied(by: &str) -> Result<(), ClientRefusal> {
        let by = by.parse().unwrap();
        Err(ClientRefusal::Denied { by })
    }

    #[test]
    fn client_is_judged_by_the_longest_entry_that_denies_it_and_then_by_the_allow_list() {
        let bans: &[_] = &["203.0.113.0/24", "203.0.113.9", "2001:db8::/32"];
        let within: &[_] = &["192.0.2.128/25"];
        let around: &[_] = &["192.0.2.128/25", "192.0.0.0/16"];
        let allow: &[_] = &["192.0.2.0/24"];
        let (allowed, not_allowed) = (Ok(()), Err(ClientRefusal::NotAllowed));
        for (allow, deny, client, verdict) in [
            (&[][..], &[][..], "192.0.2.1", allowed),
            (&[], &[], "2001:db8::1", allowed),
            (&[], &[], "::ffff:192.0.2.1", allowed),
            (&[], bans, "203.0.113.9", denied("203.0.113.9/32")),
            (&[], bans, "203.0.113.8", denied("203.0.113.0/24")),
            (&[], bans, "2001:db8:1::1", denied("2001:db8::/32")),
            (&[], bans, "203.0.114.9", allowed),
            // Although the allow list has the longer prefix.
            (allow, around, "192.0.2.1", denied("192.0.0.0/16")),
            (allow, around, "192.0.2.200", denied("192.0.2.128/25")),
            (allow, within, "192.0.2.1", allowed),
            (allow, within, "192.0.3.1", not_allowed),
            // A mapped address is the IPv4 address.
            (&[], allow, "::ffff:192.0.2.9", denied("192.0.2.0/24")),
            (
                &[],
                &["::ffff:192.0.2.0/120"],
                "192.0.2.9",
                denied("192.0.2.0/24"),
            ),
            (allow, &[], "::ffff:192.0.2.9", allowed),
            // A network of one family contains no address of the other.
            (&[], &["0.0.0.0/0"], "2001:db8::1", allowed),
        ] {
            assert_eq!(check(allow, deny, client), verdict, "{client}");
        }
    }

    #[test]
    fn deny_file_may_be_empty_and_allow_file_may_not() {
        let file = NamedTempFile::new().unwrap();
        let value = format!("@{}", file.path().display());
        let value = [value.as_str()];
        fs::write(&file, "# none yet\n").unwrap();
        assert!(read(&[], &value).is_ok());
        assert!(matches!(
            read(&value, &[]),
            Err(NetworkListError::EmptyFile { .. })
        ));
        fs::write(&file, "203.0.113.9 # sshd\nnonsense\n").unwrap();
        assert!(matches!(
            read(&[], &value),
            Err(NetworkListError::Line { number: 2, .. })
        ));
    }

    /// The work is counted in allocations, which do not depend on how busy the machine is.
    #[test]
    fn hundred_thousand_entries_are_read_by_linear_work() {
        let file = NamedTempFile::new().unwrap();
        let value = format!("@{}", file.path().display());
        let value = [value.as_str()];
        let cost = |entries: u32| {
            let mut text = String::new();
            for number in 0..entries {
                // Scattered, as bans are: the multiplier is odd, so no address comes twice.
                let scattered = number.wrapping_mul(2_654_435_761);
                let ip = std::net::Ipv4Addr::from_bits(scattered);
                match number % 4 {
                    0 => writeln!(text, "2001:db8:{:x}::{:x}", number >> 16, number & 0xffff),
                    _ => writeln!(text, "{ip}"),
                }
                .unwrap();
            }
            fs::write(&file, text).unwrap();
            let mut lists = None;
            let work = measure(|| lists = Some(read(&[], &value).unwrap()));
            let lists = lists.unwrap();
            assert_eq!(lists.denied(), entries as usize);
            assert!(lists.check_denied("2001:db8::4".parse().unwrap()).is_err());
            (work.count_total, work.bytes_max)
        };
        let (few, many) = (cost(10_000), cost(100_000));
        assert!(many.0 <= 15 * few.0, "allocations: {few:?}, {many:?}");
        assert!(many.1 <= 100_000 * 1024, "bytes: {few:?}, {many:?}");
    }
}
