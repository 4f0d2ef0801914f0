//! Checks that the kernel does not drop packets with peername's firewall mark (`src_valid_mark`).

use peername_proxy::routes::{self, RoutingEntry};

use super::interfaces_with;
use crate::finding::Finding;

/// Looks for peername's rules that select by mark, and for the setting with which the kernel drops such packets.
///
/// With `src_valid_mark` the kernel looks up the route to the sender of a marked packet *with the mark*. By peername's
/// rule every address is local there, so the kernel takes the sender for a spoofed address of this host, and drops the
/// packet. No counter shows the drop.
pub async fn check() -> Finding {
    match routes::list().await {
        Ok(found) if found.iter().any(RoutingEntry::selects_by_mark) => {
            judge(&interfaces_that_validate_marks())
        }
        Ok(_) => Finding::ok(CHECK, "no rule of peername's selects by them"),
        Err(error) => Finding::broken(CHECK, error.to_string()),
    }
}

/// The interfaces with the setting; `all` means each. `default` is left out: it is for interfaces that are created later.
fn interfaces_that_validate_marks() -> Vec<String> {
    interfaces_with("src_valid_mark")
        .filter(|interface| interface != "default")
        .collect()
}

fn judge(interfaces: &[String]) -> Finding {
    if interfaces.is_empty() {
        return Finding::ok(CHECK, "marked packets reach this host; src_valid_mark is 0");
    }
    let settings: Vec<String> = interfaces
        .iter()
        .map(|interface| format!("`sysctl -w net.ipv4.conf.{interface}.src_valid_mark=0`"))
        .collect();
    Finding::fail(
        CHECK,
        format!(
            "src_valid_mark is 1 for {} (Tailscale and wg-quick set it): the kernel silently \
             drops the packets that are marked for the proxy",
            interfaces.join(", ")
        ),
        format!(
            "{}; where rp_filter is strict, set that to 2 as well",
            settings.join(", ")
        ),
    )
}

const CHECK: &str = "firewall marks";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fix_names_each_setting() {
        assert!(judge(&[]).to_string().starts_with("ok"));
        let both = judge(&["all".to_owned(), "eth0".to_owned()]).to_string();
        assert!(
            both.contains("`sysctl -w net.ipv4.conf.all.src_valid_mark=0`"),
            "{both}"
        );
        assert!(
            both.contains("net.ipv4.conf.eth0.src_valid_mark=0"),
            "{both}"
        );
    }
}
