//! Files that an operator writes, and mounts.

pub mod mounts;
pub mod text_file;
