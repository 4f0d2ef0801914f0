//! Protocols of check services.

pub(crate) mod attributes;
pub(crate) mod ext_authz;
pub(crate) mod forward_auth;
pub(crate) mod opa;
