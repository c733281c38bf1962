//! Queued output into vectored writes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use iscsi::codec::Output;
use tokio::{io::AsyncWrite, net::TcpStream};

/// Slices in one system call: a batch of eight reads of 4 KiB takes sixteen, a read of 128 KiB from
/// cache slots thirty-three.
pub const MAX_SLICES: usize = 64;

/// How far [`send`] got.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sent {
    /// Everything queued is with the kernel.
    All,
    /// The kernel takes no more for now: await writability.
    Blocked,
}

/// Writes until the queue is empty or the kernel takes no more.
///
/// # Errors
/// What the socket says, save that it would block.
pub fn send(stream: &TcpStream, output: &mut Output) -> io::Result<Sent> {
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = output.slices(&mut slices);
        match stream.try_write_vectored(&slices[..used]) {
            Ok(count) => output.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Blocked),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Sent::All)
}

/// As [`send`], and when it is [`Sent::Blocked`] the task is woken once the socket takes more.
///
/// # Errors
/// What the socket says, save that it would block.
pub fn poll_send(
    stream: &mut TcpStream,
    output: &mut Output,
    context: &mut Context<'_>,
) -> io::Result<Sent> {
    while !output.is_empty() {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let used = output.slices(&mut slices);
        match Pin::new(&mut *stream).poll_write_vectored(context, &slices[..used]) {
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(count) => output.advance(count?),
            Poll::Pending => return Ok(Sent::Blocked),
        }
    }
    Ok(Sent::All)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use iscsi::{
        Itt, Pdu, Ttt,
        codec::{Decoder, Digests},
        pdu::{DataIn, Numbers},
    };
    use scsi::Lun;
    use tokio::net::TcpListener;

    use super::*;
    use crate::{Received, SocketOptions, receive};

    #[tokio::test]
    async fn what_one_end_sends_the_other_receives() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, far) = (near.expect("connects"), far.expect("accepts").0);
        SocketOptions::default().apply(&near).expect("plain options");

        // More slices and more bytes than one call takes.
        let mut output = Output::default();
        let piece = Bytes::from(vec![7; 4096]);
        for data_sn in 0..200 {
            let pdu = DataIn {
                is_final: false,
                acknowledge: false,
                status: None,
                lun: Lun(0),
                itt: Itt(1),
                ttt: Ttt::NONE,
                numbers: Numbers::default(),
                data_sn,
                buffer_offset: data_sn * 8192,
                data: [piece.clone(), piece.clone()].into_iter().collect(),
            };
            output.push(Pdu::DataIn(pdu), Digests::default());
        }
        let mut decoder = Decoder::new(65536, 65536);
        let mut frames = 0;
        while frames < 200 {
            // Where this blocks, the other end must read first, as it does below.
            send(&near, &mut output).expect("sends");
            if receive(&far, &mut decoder).expect("receives") == Received::Nothing {
                far.readable().await.expect("readable");
            }
            while let Some(frame) = decoder.next().expect("frames") {
                assert_eq!(frame.data.len(), 8192);
                frames += 1;
            }
        }
        drop(near);
        far.readable().await.expect("readable");
        assert_eq!(receive(&far, &mut decoder).expect("end"), Received::Closed);
    }
}
