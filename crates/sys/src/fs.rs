//! Files.

pub mod text_file;
