//! Kernel offload: steady sessions are carried by an eBPF program ([`peername_kernel`]).
//!
//! A session is steady once the backend has answered it and some requests in a row have come by the same path with the
//! same header. From then on the kernel treats such datagrams as user space would. A datagram that differs still
//! arrives in user space, which then reclaims the session from the kernel and starts over. So the kernel holds no policy,
//! only its result.

pub(super) mod candidate;
pub(super) mod egress_cache;

use std::sync::Arc;

use peername_kernel::data_path::DataPath;

/// The data path in the kernel, if it is used.
pub(crate) type KernelDataPath = Option<Arc<DataPath>>;
