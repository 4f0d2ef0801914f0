//! A handshake without a network, for tests and fuzzing. No part of the library's contract.

use std::io;
use std::sync::Arc;

use rustls::server::{Accepted, Acceptor};
use rustls::{ClientConnection, ServerConfig, ServerConnection};

/// Begins a handshake: accepts the ClientHello. The server needs no configuration yet.
pub fn begin(client: &mut ClientConnection) -> io::Result<Accepted> {
    let mut acceptor = Acceptor::default();
    let mut flight = Vec::new();
    client.write_tls(&mut flight)?;
    let mut flight = flight.as_slice();
    while !flight.is_empty() {
        acceptor.read_tls(&mut flight)?;
    }
    let accepted = acceptor.accept().map_err(|(error, _)| other(error))?;
    accepted.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Finishes the handshake.
pub fn finish(
    client: &mut ClientConnection,
    accepted: Accepted,
    config: Arc<ServerConfig>,
) -> io::Result<()> {
    let mut server: ServerConnection = accepted
        .into_connection(config)
        .map_err(|(error, _)| other(error))?;
    // The last flight holds session tickets.
    while client.is_handshaking() || server.is_handshaking() || server.wants_write() {
        let (mut down, mut up) = (Vec::new(), Vec::new());
        server.write_tls(&mut down)?;
        let mut down = down.as_slice();
        while !down.is_empty() {
            client.read_tls(&mut down)?;
            client.process_new_packets().map_err(other)?;
        }
        client.write_tls(&mut up)?;
        let mut up = up.as_slice();
        while !up.is_empty() {
            server.read_tls(&mut up)?;
            server.process_new_packets().map_err(other)?;
        }
    }
    Ok(())
}

fn other(error: rustls::Error) -> io::Error {
    io::Error::other(error)
}
