//! `jail-client`: the generator inside a jail. It trusts what the jail tells programs to trust, and resolves each name.
//!
//! Protocol: the client prints `ready`. Each line on its standard input is a shape of load: the client warms up, prints
//! `begin`, waits for another line, applies the load and prints the metrics as a line of JSON.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::intercept::cell::ORIGIN;
use crate::intercept::load;
use crate::intercept::load::spec::{LoadShape, Route, TlsLoadSpec};

/// Applies loads until the end of its input.
pub(crate) fn run() -> Result<()> {
    let authority = std::env::var_os("SSL_CERT_FILE").context("SSL_CERT_FILE is not set")?;
    let authority = PathBuf::from(authority);
    println!("{READY}");
    while let Some(line) = next_line()? {
        let shape: LoadShape = serde_json::from_str(&line).context("the shape of the load")?;
        let spec = TlsLoadSpec {
            shape,
            route: Route::Resolve,
            origin: ORIGIN,
            authority: authority.clone(),
            root: authority.clone(),
            watch: None,
            begin: Some(wait_to_begin),
        };
        println!("{}", serde_json::to_string(&load::run(&spec)?)?);
    }
    Ok(())
}

fn wait_to_begin() -> Result<()> {
    println!("{BEGIN}");
    next_line()?.context("told to exit")?;
    Ok(())
}

/// Reads a line of the standard input; `None` at its end. `io::stdin` is buffered for the whole process, so no input is lost
/// between two calls.
fn next_line() -> io::Result<Option<String>> {
    io::stdin().lines().next().transpose()
}

/// The subcommand, by which the process is found.
pub(super) const SUBCOMMAND: &str = "jail-client";
pub(super) const READY: &str = "ready";
pub(super) const BEGIN: &str = "begin";
