//! What a client says first, and what both ends go by.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::Result;

/// What the server says when it is about to take requests.
const READY: u8 = 1;

/// What both ends receive at once, bytes: as the target does for small commands, more for large ones.
pub fn buffer_bytes(largest: usize) -> usize {
    if largest > 16384 { 256 << 10 } else { 64 << 10 }
}

/// Sizes, in bytes.
#[derive(Clone, Copy)]
pub struct Greeting {
    /// Of a request.
    pub request: usize,
    /// Of its answer.
    pub response: usize,
    /// What is answered from; 0 for the same few answers again and again.
    pub memory: usize,
}

impl Greeting {
    /// The client's part; returns when the server is ready.
    pub fn say(self, socket: &mut TcpStream) -> Result<()> {
        for size in [self.request, self.response, self.memory] {
            socket.write_all(&u32::try_from(size)?.to_be_bytes())?;
        }
        Ok(socket.read_exact(&mut [0])?)
    }

    /// The server's part.
    pub fn hear(socket: &mut TcpStream) -> Result<Greeting> {
        let mut size = || {
            let mut bytes = [0; 4];
            socket.read_exact(&mut bytes)?;
            anyhow::Ok(u32::from_be_bytes(bytes) as usize)
        };
        Ok(Greeting { request: size()?, response: size()?, memory: size()? })
    }

    /// The server has made its memory: what that costs is not measured.
    pub fn answer(socket: &mut TcpStream) -> Result<()> {
        Ok(socket.write_all(&[READY])?)
    }
}
