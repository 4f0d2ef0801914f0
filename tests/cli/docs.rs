//! The documentation, run as it is written.

mod installed;
mod logs_page;
mod readme;
mod recipes;
