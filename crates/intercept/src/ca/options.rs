//! The options of a new authority.

use super::constraints::Subtree;

/// The options of a new authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityOptions {
    /// The name that people see in a list of authorities.
    pub common_name: String,
    /// The days during which the authority is valid. Clients have to trust its successor before they have passed.
    pub days: u16,
    /// The hosts for which the authority may issue certificates, as critical name constraints: clients accept it for no other
    /// hosts, even if its key is stolen. All hosts if empty.
    pub permitted: Vec<Subtree>,
}
