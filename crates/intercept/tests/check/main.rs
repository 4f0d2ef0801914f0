//! Check clients against real services and faulty ones: an ext_authz server built on Envoy's own message types, OPA, a
//! forwardAuth service, fault injection, and policies that are evaluated in this process.

mod broken;
mod cache;
mod ext_authz;
mod faults;
mod forward_auth;
#[path = "../../../../tests/harness/check/h2.rs"]
mod h2;
mod opa;
mod rego;
mod rig;
#[path = "../../../../tests/harness/check/service.rs"]
mod service;
mod workers;

use rig::wait_for;
