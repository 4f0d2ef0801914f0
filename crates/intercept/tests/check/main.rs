//! Checks against real services and broken ones: an ext_authz server of Envoy's own types, OPA, a forwardAuth
//! service, and everything that can be wrong with one.

#[path = "../../../../tests/harness/check/broken.rs"]
mod broken;
mod cache;
mod ext_authz;
mod faults;
mod forward_auth;
#[path = "../../../../tests/harness/check/h2.rs"]
mod h2;
mod opa;
mod rig;
#[path = "../../../../tests/harness/check/service.rs"]
mod service;
mod workers;

use rig::wait_for;
