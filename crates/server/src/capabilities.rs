//! Advice on how this process can get the capabilities that it lacks.
//!
//! File capabilities, ambient capabilities and root are not possible for every process (capabilities(7)).

use std::fmt::{self, Display, Formatter};

use peername_sys::process::caps::{CapabilitySet, has_no_new_privs, is_in_bounding_set};

/// Advice on getting a capability that permits connections from clients' addresses. IP_TRANSPARENT needs CAP_NET_RAW or
/// CAP_NET_ADMIN (ip(7)); CAP_NET_RAW permits less, so it is preferred.
#[derive(Clone, Copy, Debug)]
pub struct Advice {
    /// The preferred capability in the bounding set; `None` if neither is in it.
    capability: Option<&'static str>,
    /// Whether execve(2) ignores file capabilities.
    no_new_privs: bool,
}

impl Advice {
    /// Determines what is possible for this process.
    pub fn for_this_process() -> Self {
        let capability = [
            (CapabilitySet::NET_RAW, "net_raw"),
            (CapabilitySet::NET_ADMIN, "net_admin"),
        ]
        .into_iter()
        .find(|(capability, _)| is_in_bounding_set(*capability))
        .map(|(_, name)| name);
        Self {
            capability,
            no_new_privs: has_no_new_privs(),
        }
    }
}

impl Display for Advice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(name) = self.capability else {
            return f.write_str(
                "this process can't get it, because it is not in the bounding set: add it to \
                 CapabilityBoundingSet= and AmbientCapabilities= in the unit, or run the container with \
                 --cap-add NET_RAW",
            );
        };
        let ambient = format!(
            "AmbientCapabilities=CAP_{} CAP_NET_BIND_SERVICE in the unit",
            name.to_uppercase()
        );
        if self.no_new_privs {
            write!(
                f,
                "{ambient} (setcap has no effect under no_new_privs, which DynamicUser= and NoNewPrivileges= set)"
            )
        } else {
            write!(
                f,
                "run as root, or `setcap cap_{name},cap_net_bind_service+ep $(command -v peername)`, or {ambient}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_names_only_what_is_possible() {
        let advice = |capability, no_new_privs| {
            let advice = Advice {
                capability,
                no_new_privs,
            };
            advice.to_string()
        };
        assert!(
            advice(Some("net_raw"), false).contains("setcap cap_net_raw,cap_net_bind_service+ep")
        );
        let within = advice(Some("net_admin"), true);
        assert!(
            within.starts_with("AmbientCapabilities=CAP_NET_ADMIN CAP_NET_BIND_SERVICE"),
            "{within}"
        );
        assert!(advice(None, false).contains("CapabilityBoundingSet="));
    }
}
