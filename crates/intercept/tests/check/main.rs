//! Checks against real services and broken ones: an ext_authz server of Envoy's own types, OPA, a forwardAuth
//! service, and everything that can be wrong with one.

mod cache;
mod ext_authz;
mod faults;
mod forward_auth;
mod h2;
mod opa;
mod rig;
mod workers;
