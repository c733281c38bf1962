//! Reads from a stream into the buffer of a decoder.

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

use crate::{io_progress::Received, stream::ConnectionStream};

/// Reads once, at most as much as the decoder has space for.
///
/// # Errors
/// The errors of the socket, except WouldBlock, and those of TLS.
pub fn receive(stream: &mut ConnectionStream, decoder: &mut Decoder) -> io::Result<Received> {
    let received = match stream {
        ConnectionStream::Plain(tcp) => tcp.read_pdus(decoder, try_read).map(received),
        ConnectionStream::Tls(stream) => stream.receive(&mut decoder.buffer(), try_read),
        ConnectionStream::Compressed(stream) => stream.receive(&mut decoder.buffer(), try_read),
    };
    or_nothing(received)
}

/// Reads once, at most as much as the decoder has space for. A read that returns fewer bytes than requested has emptied
/// the socket. The runtime then waits for new data at once, without a further system call that returns nothing.
///
/// # Errors
/// The errors of [`receive`].
pub fn poll_receive(
    stream: &mut ConnectionStream,
    decoder: &mut Decoder,
    context: &mut Context<'_>,
) -> Poll<io::Result<Received>> {
    match stream {
        ConnectionStream::Plain(tcp) => {
            let read = |tcp: &mut _, room: &mut _| poll_read(tcp, room, context);
            tcp.read_pdus(decoder, read).map(received)
        }
        ConnectionStream::Tls(stream) => {
            let read = |tcp: &mut _, input: &mut _| poll_read(tcp, input, context);
            let looked = stream.receive(&mut decoder.buffer(), read);
            looked_again(looked, context)
        }
        ConnectionStream::Compressed(stream) => {
            let read = |tcp: &mut _, input: &mut _| poll_read(tcp, input, context);
            let looked = stream.receive(&mut decoder.buffer(), read);
            looked_again(looked, context)
        }
    }
}

/// Wakes the task after [`Received::Nothing`]. All reads of this poll brought no complete PDU, but the socket may hold
/// more input. The socket has already signalled this input, so it would not wake the task again.
fn looked_again(
    looked: Poll<io::Result<Received>>,
    context: &Context<'_>,
) -> Poll<io::Result<Received>> {
    if matches!(looked, Poll::Ready(Ok(Received::Nothing))) {
        context.waker().wake_by_ref();
    }
    looked
}

/// Reads the socket directly, even if the runtime has not reported input.
///
/// # Errors
/// The errors of [`receive`].
pub fn receive_now(stream: &mut ConnectionStream, decoder: &mut Decoder) -> io::Result<Received> {
    let received = match stream {
        ConnectionStream::Plain(tcp) => tcp.read_pdus(decoder, recv).map(received),
        ConnectionStream::Tls(stream) => stream.receive(&mut decoder.buffer(), recv),
        ConnectionStream::Compressed(stream) => stream.receive(&mut decoder.buffer(), recv),
    };
    or_nothing(received)
}

fn try_read(stream: &mut TcpStream, room: &mut impl BufMut) -> Poll<io::Result<usize>> {
    pending_if_nothing(stream.try_read_buf(room))
}

fn poll_read(
    stream: &mut TcpStream,
    buffer: &mut impl BufMut,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    // SAFETY: `ReadBuf::uninit` accepts uninitialised memory and never de-initialises any of it.
    let mut room = ReadBuf::uninit(unsafe { buffer.chunk_mut().as_uninit_slice_mut() });
    std::task::ready!(Pin::new(stream).poll_read(context, &mut room))?;
    let count = room.filled().len();
    // SAFETY: the read has filled, and so initialised, this number of bytes of the buffer.
    unsafe { buffer.advance_mut(count) };
    Poll::Ready(Ok(count))
}

fn recv(stream: &mut TcpStream, buffer: &mut impl BufMut) -> Poll<io::Result<usize>> {
    // SAFETY: `recv` only writes to the memory; it never de-initialises it.
    let room = unsafe { buffer.chunk_mut().as_uninit_slice_mut() };
    let count = match SockRef::from(&*stream).recv(room) {
        Ok(count) => count,
        failed => return pending_if_nothing(failed),
    };
    // SAFETY: `recv` has initialised this number of bytes of the buffer.
    unsafe { buffer.advance_mut(count) };
    Poll::Ready(Ok(count))
}

fn received(count: io::Result<usize>) -> io::Result<Received> {
    count.map(|count| if count == 0 { Received::Closed } else { Received::Bytes(count) })
}

fn pending_if_nothing(count: io::Result<usize>) -> Poll<io::Result<usize>> {
    use io::ErrorKind::{Interrupted, WouldBlock};
    match count {
        Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => Poll::Pending,
        count => Poll::Ready(count),
    }
}

fn or_nothing(received: Poll<io::Result<Received>>) -> io::Result<Received> {
    match received {
        Poll::Ready(received) => received,
        Poll::Pending => Ok(Received::Nothing),
    }
}
