//! Rules, routes and addresses against the real kernel, each test in a network namespace of its own.
//!
//! Needs root, and the `ip` binary, by which results are verified independently.

mod own_addresses;
mod reply_path;
mod routes;

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use peername_sys::process::namespace::NetworkNamespace;
use tokio::time::{sleep, timeout};

/// Runs `test` in a new network namespace with loopback up.
fn in_namespace(test: impl AsyncFnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    let run = move || {
        let _network = NetworkNamespace::unshare().context("these tests need root")?;
        ip("link set lo up")?;
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(test())
    };
    // The namespace, and the capabilities that some tests drop, belong to the thread.
    match thread::spawn(run).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `ip` with these arguments and returns its output.
fn ip(words: &str) -> Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {words}: {stderr}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Adds an address of either family to loopback, and waits until it is usable: IPv6 takes a moment.
async fn add_address(address: &str, prefix: &str) -> Result<()> {
    ip(&format!("address add {address}/{prefix} dev lo"))?;
    timeout(Duration::from_secs(2), async {
        while TcpListener::bind((address, 0)).is_err()
            || !ip(&format!("route get {address}"))?.starts_with("local ")
        {
            sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    })
    .await?
}

/// Returns all rules and routes, as `ip` prints them.
fn rules_and_routes() -> Result<String> {
    let mut all = String::new();
    for words in [
        "-4 -d rule",
        "-6 -d rule",
        "-4 -d route show table all",
        "-6 -d route show table all",
    ] {
        all.push_str(&ip(words)?);
    }
    Ok(all)
}

/// Disables IPv6, as administrators do.
fn disable_ipv6() -> Result<()> {
    Ok(std::fs::write(
        "/proc/sys/net/ipv6/conf/all/disable_ipv6",
        "1",
    )?)
}
