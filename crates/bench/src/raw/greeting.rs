//! The first bytes of a connection of the bare TCP program: the client sends the sizes that both
//! ends use.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::Result;

/// The byte by which the bare TCP server announces that it is ready for requests.
const READY: u8 = 1;

/// Returns the size of a receive buffer in bytes. For small commands it equals the target's buffer,
/// for large commands it is larger.
pub fn buffer_bytes(largest: usize) -> usize {
    if largest > 16384 { 256 << 10 } else { 64 << 10 }
}

/// The first message on a connection, with the sizes in bytes that both ends use.
#[derive(Clone, Copy)]
pub struct Greeting {
    pub request: usize,
    pub response: usize,
    /// Size of the memory from which the server answers the connection. 0: it sends the same few
    /// bytes in each response.
    pub memory: usize,
}

impl Greeting {
    /// Sends the sizes to the server, and waits until the server is ready.
    pub fn say(self, socket: &mut TcpStream) -> Result<()> {
        for size in [self.request, self.response, self.memory] {
            socket.write_all(&u32::try_from(size)?.to_be_bytes())?;
        }
        Ok(socket.read_exact(&mut [0])?)
    }

    /// Receives the first message of a client, with the sizes that both ends use.
    pub fn hear(socket: &mut TcpStream) -> Result<Greeting> {
        let mut size = || {
            let mut bytes = [0; 4];
            socket.read_exact(&mut bytes)?;
            anyhow::Ok(u32::from_be_bytes(bytes) as usize)
        };
        Ok(Greeting { request: size()?, response: size()?, memory: size()? })
    }

    /// Sends that the server is ready. The server has allocated its memory by then, so the
    /// allocation is not measured.
    pub fn answer(socket: &mut TcpStream) -> Result<()> {
        Ok(socket.write_all(&[READY])?)
    }
}
