//! `data_path` in a build without the feature `ebpf`: loading fails, and its types have no values.

use std::convert::Infallible;

use crate::flow::Flow;
use crate::totals::Totals;
use crate::usage::Usage;

/// A data path; there is none.
#[derive(Debug)]
pub struct DataPath(Infallible);

/// An installed flow; there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InstalledFlow(Infallible);

/// A period in which decisions about sessions hold; there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(Infallible);

/// The program is not part of this build.
#[derive(Debug, thiserror::Error)]
#[error("this build lacks the data path in the kernel: build with --features kernel")]
pub struct Error;

/// # Errors
///
/// Always.
pub fn try_load() -> Result<(), Error> {
    Err(Error)
}

#[allow(missing_docs, reason = "no value has these methods")]
impl DataPath {
    /// # Errors
    ///
    /// Always.
    pub fn attach(_devices: &[String], _max_flows: u32) -> Result<Self, Error> {
        Err(Error)
    }

    pub fn install(&self, _flow: &Flow<'_>, _epoch: Epoch) -> Option<InstalledFlow> {
        match self.0 {}
    }

    pub fn epoch(&self) -> Epoch {
        match self.0 {}
    }

    pub fn usage(&self, _flow: &InstalledFlow) -> Usage {
        match self.0 {}
    }

    pub fn remove(&self, _flow: &InstalledFlow) -> Usage {
        match self.0 {}
    }

    pub fn flows(&self) -> usize {
        match self.0 {}
    }

    pub fn is_evicted(&self, _flow: &InstalledFlow) -> bool {
        match self.0 {}
    }

    pub fn evict_all(&self) {
        match self.0 {}
    }

    pub fn is_filtered(&self) -> bool {
        match self.0 {}
    }

    pub fn check_sysctls(&self) {
        match self.0 {}
    }

    pub fn take_totals(&self) -> Option<Totals> {
        match self.0 {}
    }
}
