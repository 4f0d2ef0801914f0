//! Files that an operator writes.

pub mod text_file;
