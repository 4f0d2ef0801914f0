//! `peername ca`: an authority with a key that only its owner can read, and clients that trust it.
//!
//! OpenSSL inspects the certificates; real clients show whether they accept what the authority signs, each
//! with nothing but the variables that `peername ca env` prints.

mod clients;
mod files;
