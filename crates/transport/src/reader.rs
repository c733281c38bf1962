//! A socket's bytes into the decoder's buffer.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BufMut;
use iscsi::codec::Decoder;
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::TcpStream,
};

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

/// Reads once, as much as the decoder has room for. A read that brought less than that is known to
/// have emptied the socket, which saves the system call that would say so.
///
/// # Errors
/// What the socket says, save that it would block.
pub fn poll_receive(
    stream: &mut TcpStream,
    decoder: &mut Decoder,
    context: &mut Context<'_>,
) -> Poll<io::Result<Received>> {
    let mut buffer = decoder.buffer();
    // SAFETY: `ReadBuf::uninit` takes memory that need not be initialised and never
    // de-initialises any of it.
    let mut room = ReadBuf::uninit(unsafe { buffer.chunk_mut().as_uninit_slice_mut() });
    std::task::ready!(Pin::new(stream).poll_read(context, &mut room))?;
    let count = room.filled().len();
    // SAFETY: the read has filled, hence initialised, that many bytes of the buffer.
    unsafe { buffer.advance_mut(count) };
    Poll::Ready(Ok(if count == 0 { Received::Closed } else { Received::Bytes(count) }))
}

/// Asks the kernel directly, past the runtime's notion of readiness.
///
/// # Errors
/// What the socket says, save that it would block.
pub fn receive_now(stream: &TcpStream, decoder: &mut Decoder) -> io::Result<Received> {
    let mut buffer = decoder.buffer();
    // SAFETY: `recv` only writes to the memory, it never de-initialises it.
    let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    match SockRef::from(stream).recv(room) {
        Ok(0) => Ok(Received::Closed),
        Ok(count) => {
            // SAFETY: `recv` has initialised that many bytes of the buffer.
            unsafe { buffer.advance_mut(count) };
            Ok(Received::Bytes(count))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Nothing),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Received::Nothing),
        Err(error) => Err(error),
    }
}
