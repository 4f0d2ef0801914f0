//! The options of a new authority.

use super::constraints::Permitted;

/// The options of a new authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityOptions {
    /// The name that people see in a list of authorities.
    pub common_name: String,
    /// How many days it is valid. Clients have to trust its successor by then.
    pub days: u16,
    /// The hosts for which it may issue certificates, as critical name constraints: clients accept it for no others, even
    /// if its key is stolen. All hosts if empty.
    pub permitted: Vec<Permitted>,
}
