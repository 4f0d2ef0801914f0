//! Processes of the program that could accept connections without the library.

mod daemons;
mod environment;
mod masters;
mod propagation;
mod starters;
