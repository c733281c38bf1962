//! A socket's bytes into the decoder's buffer.

use std::io;

use iscsi::codec::Decoder;
use tokio::net::TcpStream;

/// What one look at the socket brought.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing for now: await readiness.
    Nothing,
    /// The peer has closed its half.
    Closed,
}

/// Reads once, as much as the decoder has room for.
///
/// # Errors
/// What the socket says, save that it would block.
pub fn receive(stream: &TcpStream, decoder: &mut Decoder) -> io::Result<Received> {
    match stream.try_read_buf(&mut decoder.buffer()) {
        Ok(0) => Ok(Received::Closed),
        Ok(count) => Ok(Received::Bytes(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Received::Nothing),
        Err(error) => Err(error),
    }
}
