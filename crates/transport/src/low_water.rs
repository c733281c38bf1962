//! The receive low-water mark of a socket (SO_RCVLOWAT): the number of bytes that must be in its receive buffer before
//! the kernel wakes the reader.
//!
//! A link delivers a PDU with 64 KiB of data in 46 packets, and one with 4 KiB in three. Waking the
//! reader for each packet costs several times as much processor time as handling the data. If PDUs
//! arrive in small pieces, the mark is raised, and the reader sleeps until the PDU, or a large part
//! of it, has arrived. For all other input the mark is one byte.

use std::io;

use tokio::net::TcpStream;

use crate::socket_options;

/// Chooses the low-water mark of a socket: the number of bytes that must arrive before it becomes readable.
#[derive(Debug)]
pub(crate) struct LowWater {
    /// The low-water mark that is set in the kernel, in bytes.
    bytes: usize,
    /// The length of the last read that emptied the socket while the mark was one byte.
    piece: usize,
}

impl Default for LowWater {
    fn default() -> Self {
        Self { bytes: 1, piece: usize::MAX }
    }
}

impl LowWater {
    /// Records a read of `count` bytes that emptied the socket.
    pub fn note_all(&mut self, count: usize) {
        if self.bytes == 1 {
            self.piece = count;
        }
    }

    /// Sets the mark before the reader sleeps. `missing` is the number of bytes that the incoming
    /// PDU still lacks; with 0, any byte wakes the reader.
    ///
    /// # Errors
    /// The error of setsockopt().
    pub fn wait_for(&mut self, socket: &TcpStream, missing: usize) -> io::Result<()> {
        let wanted = self.wanted(missing);
        if wanted != self.bytes {
            socket_options::set(
                socket,
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                wanted as libc::c_uint,
            )?;
            self.bytes = wanted;
        }
        Ok(())
    }

    fn wanted(&self, missing: usize) -> usize {
        let is_in_pieces = self.bytes > 1 || self.piece <= SMALL_PIECE;
        if is_in_pieces && missing > ONE_PACKET { missing.min(MOST) } else { 1 }
    }
}

/// If reads return more bytes than this, the mark stays at one byte: the network card or the kernel has then already
/// joined packets.
const SMALL_PIECE: usize = 8 << 10;
/// If no more bytes than this are missing, the mark stays at one byte: they arrive in one packet (1,500 bytes less 40
/// of headers), so a higher mark would save no wake-up.
const ONE_PACKET: usize = 1460;
/// The highest mark. A link of 50 kbit/s fills it in 5 s, the time after which an idle peer is pinged.
const MOST: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll, time::Duration};

    use bytes::Bytes;
    use iscsi::{
        Itt, Pdu, Serial, Ttt,
        codec::{Decoder, Digests, PduOutput},
        pdu::NopOut,
    };
    use scsi::Lun;
    use tokio::{io::AsyncWriteExt, net::TcpListener, time::timeout};

    use super::*;
    use crate::{ConnectionStream, Received, poll_receive};

    const PACKET: usize = 1448;

    fn pdus(lengths: &[usize]) -> Vec<u8> {
        let mut output = PduOutput::default();
        for length in lengths {
            let nop = NopOut {
                immediate: true,
                lun: Lun(0),
                itt: Itt(1),
                ttt: Ttt::NONE,
                cmd_sn: Serial(1),
                exp_stat_sn: Serial(1),
                data: Bytes::from(vec![7; *length]),
            };
            output.push(Pdu::NopOut(nop), Digests::default());
        }
        let mut bytes = Vec::new();
        while !output.is_empty() {
            let mut slices = [io::IoSlice::new(&[]); 16];
            let count = output.slices(&mut slices);
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            let sent = slices[..count].iter().map(|slice| slice.len()).sum();
            output.advance(sent);
        }
        bytes
    }

    /// Receives `pdus` PDUs. Returns how many reads were needed that returned data.
    async fn receive(stream: &mut ConnectionStream, decoder: &mut Decoder, pdus: usize) -> usize {
        let (mut reads, mut whole) = (0, 0);
        let received = poll_fn(|context| {
            while whole < pdus {
                match poll_receive(stream, decoder, context) {
                    Poll::Ready(Ok(Received::Bytes(_))) => reads += 1,
                    Poll::Ready(other) => panic!("{other:?}"),
                    Poll::Pending => return Poll::Pending,
                }
                while decoder.next().expect("valid PDUs").is_some() {
                    whole += 1;
                }
            }
            Poll::Ready(())
        });
        timeout(Duration::from_secs(10), received).await.expect("the reader is woken");
        reads
    }

    /// Sends `bytes` in pieces of one packet, and lets the reader run after each piece.
    async fn send(stream: &mut TcpStream, bytes: &[u8]) {
        for packet in bytes.chunks(PACKET) {
            stream.write_all(packet).await.expect("it takes them");
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn connection() -> (TcpStream, ConnectionStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.expect("connected");
        far.set_nodelay(true).expect("a TCP socket");
        (far, ConnectionStream::from(listener.accept().await.expect("connected").0))
    }

    #[tokio::test]
    async fn the_packets_of_a_short_pdu_wake_their_reader_twice() {
        let (mut far, mut near) = connection().await;
        let mut decoder = Decoder::new(64 << 10, 256 << 10);
        for _ in 0..40 {
            let block = pdus(&[4096]);
            let (reads, ()) =
                tokio::join!(receive(&mut near, &mut decoder, 1), send(&mut far, &block));
            assert!(reads <= 2, "{reads} reads of {} packets", block.len().div_ceil(PACKET));
            // The raised mark must not delay the reader when the next PDU is short.
            let status = pdus(&[0]);
            tokio::join!(receive(&mut near, &mut decoder, 1), send(&mut far, &status));
        }
    }

    #[tokio::test]
    async fn the_packets_of_a_long_data_segment_wake_their_reader_a_few_times_only() {
        let (mut far, mut near) = connection().await;
        let mut decoder = Decoder::new(64 << 10, 256 << 10);
        for _ in 0..3 {
            let long = pdus(&[128 << 10]);
            let packets = long.len().div_ceil(PACKET);
            let (reads, ()) =
                tokio::join!(receive(&mut near, &mut decoder, 1), send(&mut far, &long));
            assert!(reads < packets / 4, "{reads} reads of {packets} packets");
            // A short PDU after a long one wakes the reader immediately, and so does the last piece
            // of a PDU.
            for length in [0, 512, 9000, 20_000, 0] {
                let short = pdus(&[length]);
                tokio::join!(receive(&mut near, &mut decoder, 1), send(&mut far, &short));
            }
        }
    }
}
