//! Which sessions are left to the kernel, and since when.
//!
//! A session is steady once the backend has answered it and some requests in a row have come the same way with the
//! same header. From then on the kernel does with such datagrams what is done here, and only what differs comes
//! here: then the session is taken back, and begins anew. So nobody's policy is in the kernel, only its result.

pub(super) mod candidate;
pub(super) mod egress_cache;

use std::sync::Arc;

use peername_kernel::data_path::DataPath;

/// The data path in the kernel, if there is one.
pub(crate) type KernelDataPath = Option<Arc<DataPath>>;
