//! The monitoring of a proxy under load: Prometheus scrapes it, and its status page is open in a browser.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// Scrapes `/metrics` and reads `/events` until it is dropped.
#[derive(Debug)]
pub(super) struct Observer {
    is_stopped: Arc<AtomicBool>,
}

impl Observer {
    /// Starts to observe the admin endpoint at this address.
    pub(super) fn start(admin: SocketAddr) -> Result<Self> {
        let mut metrics = String::new();
        get(admin, "/metrics")?
            .read_to_string(&mut metrics)
            .context("/metrics")?;
        ensure!(metrics.contains("peername_connections"), "no metrics");
        let mut page = get(admin, "/events")?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopped);
        // Both threads end with the proxy at the latest.
        thread::spawn(move || io::copy(&mut page, &mut io::sink()));
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                thread::sleep(SCRAPE_INTERVAL);
                let _ = get(admin, "/metrics")
                    .map(|mut response| io::copy(&mut response, &mut io::sink()));
            }
        });
        Ok(Self { is_stopped })
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Relaxed);
    }
}

fn get(admin: SocketAddr, path: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(admin).context("connect to the admin endpoint")?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).context(request)?;
    Ok(stream)
}

/// A Prometheus server usually scrapes every 15 s or less often. Here it is more often, so that a short measurement has
/// some scrapes, and shows no less than their cost.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(1);
