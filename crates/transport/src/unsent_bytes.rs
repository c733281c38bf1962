//! The interface of queues of unsent bytes, from which TCP, TLS and compression write.

use std::{
    io::{self, IoSlice},
    task::Poll,
};

use iscsi::codec::PduOutput;
use tokio::net::TcpStream;

use crate::{
    io_progress::{MAX_SLICES, SendProgress},
    tcp::Tcp,
};

/// A queue of bytes that are to be written to a socket.
pub(crate) trait UnsentBytes {
    /// Returns true if all bytes of the queue were written.
    fn is_empty(&self) -> bool;

    /// Fills `slices` from the front of the queue and returns the number used: at least one, unless
    /// the queue is empty.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize;

    /// Removes the first `count` bytes, which were written. `count` must not exceed the total
    /// length of the slices that the last call of `slices` returned.
    fn advance(&mut self, count: usize);
}

impl UnsentBytes for PduOutput {
    fn is_empty(&self) -> bool {
        self.is_empty()
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.slices(slices)
    }

    fn advance(&mut self, count: usize) {
        self.advance(count);
    }
}

/// Writes until the queue is empty or the kernel accepts no more.
pub(crate) fn write_all(
    tcp: &mut Tcp,
    output: &mut impl UnsentBytes,
    mut write: impl FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
) -> io::Result<SendProgress> {
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = output.slices(&mut slices);
        match tcp.write_by(&slices[..used], &mut write) {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(count)) => output.advance(count),
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => return Ok(SendProgress::Blocked),
        }
    }
    Ok(SendProgress::All)
}

/// Writes as much as the socket accepts at once. Returns `Pending` if it accepts no byte.
pub(crate) fn try_write(tcp: &mut TcpStream, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    match tcp.try_write_vectored(slices) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        written => Poll::Ready(written),
    }
}
