//! Writes the queued output of a connection to its stream, in vectored writes.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::Context,
};

use iscsi::codec::PduOutput;
use tokio::{io::AsyncWrite, net::TcpStream};

use crate::{
    io_progress::SendProgress,
    stream::ConnectionStream,
    unsent_bytes::{try_write, write_all},
};

/// Writes until the queue is empty or the kernel accepts no more.
///
/// # Errors
/// The errors of the socket, except WouldBlock, and the alerts of TLS.
pub fn send(stream: &mut ConnectionStream, output: &mut PduOutput) -> io::Result<SendProgress> {
    match stream {
        ConnectionStream::Plain(tcp) => write_all(tcp, output, try_write),
        ConnectionStream::Tls(stream) => stream.send(output, try_write),
        ConnectionStream::Compressed(stream) => stream.send(output, try_write),
    }
}

/// Works like [`send`]. If the result is [`SendProgress::Blocked`], the task is woken when the
/// socket accepts more.
///
/// # Errors
/// The errors of [`send`].
pub fn poll_send(
    stream: &mut ConnectionStream,
    output: &mut PduOutput,
    context: &mut Context<'_>,
) -> io::Result<SendProgress> {
    let write = |stream: &mut TcpStream, slices: &[IoSlice<'_>]| {
        Pin::new(stream).poll_write_vectored(context, slices)
    };
    match stream {
        ConnectionStream::Plain(tcp) => write_all(tcp, output, write),
        ConnectionStream::Tls(stream) => stream.send(output, write),
        ConnectionStream::Compressed(stream) => stream.send(output, write),
    }
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
    async fn bytes_sent_at_one_end_arrive_at_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (near, far) = (near.expect("connects"), far.expect("accepts").0);
        SocketOptions::default().apply(&near).expect("plain options");
        let (mut near, mut far) = (ConnectionStream::from(near), ConnectionStream::from(far));

        // This output has more slices and more bytes than one system call accepts.
        let mut output = PduOutput::default();
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
            // Send without waiting: this may fill the socket until the other end reads, as it does below.
            send(&mut near, &mut output).expect("sends");
            if receive(&mut far, &mut decoder).expect("receives") == Received::Nothing {
                far.readable().await.expect("readable");
            }
            while let Some(frame) = decoder.next().expect("frames") {
                assert_eq!(frame.data.len(), 8192);
                frames += 1;
            }
        }
        drop(near);
        far.readable().await.expect("readable");
        assert_eq!(receive(&mut far, &mut decoder).expect("end"), Received::Closed);
    }
}
