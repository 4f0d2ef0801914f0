//! Connections to origins: destinations, certificates, reuse, refusals.

mod certificates;
mod destinations;
mod name_resolution;
mod parent_proxy;
mod private;
mod rebinding;
mod refusals;
mod retries;
mod reuse;
