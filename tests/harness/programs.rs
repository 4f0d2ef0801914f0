//! Unmodified programs at either end, and what drives them.

pub(crate) mod browser;
pub(crate) mod collector;
pub(crate) mod sender;
pub(crate) mod server;
pub(crate) mod stranger;
pub(crate) mod terminal;
