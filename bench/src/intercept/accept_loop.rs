//! The accept loop of the origin server and of [`intercept-floor`](super::floor), the lower bound for proxies: one thread, one
//! task for each connection.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};

/// Accepts connections and serves each by `serve`, until the process is killed. Nagle's algorithm is off (TCP_NODELAY).
pub(crate) fn run<S>(listen: SocketAddr, serve: impl Fn(TcpStream) -> S) -> Result<()>
where
    S: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("listen on {listen}"))?;
        loop {
            let (stream, _) = listener.accept().await.context("accept")?;
            if stream.set_nodelay(true).is_ok() {
                tokio::spawn(serve(stream));
            }
        }
    })
}
