//! The loopback interface, which a new network namespace has but down.

use rtnetlink::LinkUnspec;

use super::{LOOPBACK, Netlink, named};
use crate::Result;

impl Netlink {
    /// Sets the loopback interface up, which also gives it 127.0.0.1 and `::1`. Needs CAP_NET_ADMIN.
    pub async fn set_loopback_up(&self) -> Result<()> {
        let up = LinkUnspec::new_with_index(LOOPBACK).up().build();
        named(self.handle.link().set(up).execute().await, "RTM_NEWLINK")
    }
}
