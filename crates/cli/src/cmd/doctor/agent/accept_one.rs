//! The program in the container of `peername doctor agent`: accepts one connection, and prints its peer.

use std::io::{self, Write, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use crate::cmd::doctor::finding::Finding;

/// Options of `peername doctor accept-one`.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(before_help = "Example:\n  peername doctor accept-one 8443")]
pub(in crate::cmd::doctor) struct Args {
    port: u16,
    #[arg(long)]
    v6: bool,
}

/// Prints [`LISTENING`] once a client may connect; the finding names the peer that accept(2) and getpeername(2) return.
pub(in crate::cmd::doctor) fn run(args: &Args) -> Finding {
    match accept(args) {
        Ok(peers) if peers.by_accept == peers.by_name => {
            Finding::ok(ACCEPTED, peers.by_accept.to_string())
        }
        Ok(peers) => Finding::broken(
            ACCEPTED,
            format!(
                "{} by accept(2), {} by getpeername(2)",
                peers.by_accept, peers.by_name
            ),
        ),
        Err(error) => Finding::broken(ACCEPTED, error.to_string()),
    }
}

/// The peer of a connection.
struct Peers {
    by_accept: SocketAddr,
    by_name: SocketAddr,
}

fn accept(args: &Args) -> io::Result<Peers> {
    let ip: IpAddr = match args.v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    let listener = TcpListener::bind((ip, args.port))?;
    writeln!(stdout(), "{LISTENING}")?;
    let (client, by_accept) = listener.accept()?;
    let by_name = client.peer_addr()?;
    Ok(Peers { by_accept, by_name })
}

pub(super) const LISTENING: &str = "listening";
/// The subject of the finding.
pub(super) const ACCEPTED: &str = "accepted";
