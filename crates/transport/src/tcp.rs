//! A TCP socket with byte counts, a low-water mark and pacing.

use std::{
    io::{self, IoSlice},
    task::Poll,
};

use bytes::{BufMut, BytesMut, buf::Limit};
use iscsi::codec::Decoder;
use rustix::{io as system, ioctl};
use tokio::net::TcpStream;

use crate::{low_water::LowWater, pacing::Pacing};

/// The ioctl that returns the bytes in the send queue. Its value in linux/sockios.h equals that of
/// TIOCOUTQ.
const SIOCOUTQ: ioctl::Opcode = 0x5411;

/// A connected socket and its byte counts. The bytes are counted as they cross the link, from the
/// first byte of the TLS handshake on: TLS records and compressed frames.
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    written: u64,
    read: u64,
    low_water: LowWater,
    pacing: Pacing,
}

impl From<TcpStream> for Tcp {
    fn from(stream: TcpStream) -> Self {
        let (low_water, pacing) = (LowWater::default(), Pacing::default());
        Self { stream, written: 0, read: 0, low_water, pacing }
    }
}

impl Tcp {
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns the socket for I/O that bypasses the byte counts.
    pub fn stream_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns the number of bytes that the kernel has accepted.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes that have arrived, including those that the kernel still holds.
    pub(crate) fn arrived(&self) -> io::Result<u64> {
        Ok(self.read + system::ioctl_fionread(&self.stream)?)
    }

    /// Reads PDUs into the buffer of a decoder. If the socket has no data, sets the low-water mark,
    /// so that the reader is woken at the right time.
    pub(crate) fn read_pdus<'a>(
        &mut self,
        decoder: &'a mut Decoder,
        read: impl FnOnce(&mut TcpStream, &mut Limit<&'a mut BytesMut>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let missing = decoder.missing();
        let mut room = decoder.buffer();
        let offered = room.remaining_mut();
        match self.read_by(&mut room, read) {
            Poll::Ready(Ok(count)) => {
                if count < offered {
                    self.low_water.note_all(count);
                }
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            // Report the error: if the mark stays too high, the reader might never be woken again.
            Poll::Pending => match self.low_water.wait_for(&self.stream, missing) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
        }
    }

    /// Returns the number of bytes that the peer's host has acknowledged: the bytes that the kernel
    /// has accepted less those that it still keeps for retransmission.
    pub(crate) fn acknowledged(&self) -> io::Result<u64> {
        // SAFETY: SIOCOUTQ (tcp(7)) writes one int.
        let kept = unsafe {
            let ask = ioctl::Getter::<SIOCOUTQ, i32>::new();
            ioctl::ioctl(&self.stream, ask)?
        };
        Ok(self.written.saturating_sub(u64::try_from(kept).unwrap_or(0)))
    }

    /// Writes once by the function `write`, and counts the written bytes.
    pub(crate) fn write_by(
        &mut self,
        slices: &[IoSlice<'_>],
        write: impl FnOnce(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let written = write(&mut self.stream, slices);
        if let Poll::Ready(Ok(count)) = &written {
            self.written += *count as u64;
            self.pacing.note_written(&self.stream, *count, self.written);
        }
        written
    }

    /// Reads once by the function `read`, and counts the received bytes.
    pub(crate) fn read_by<B>(
        &mut self,
        room: &mut B,
        read: impl FnOnce(&mut TcpStream, &mut B) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let came = read(&mut self.stream, room);
        if let Poll::Ready(Ok(count)) = &came {
            self.read += *count as u64;
        }
        came
    }

    /// Performs one read directly from the socket, without registering a waker, and counts the
    /// bytes.
    pub(crate) fn read_now(
        &mut self,
        read: impl FnOnce(&TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let count = read(&self.stream)?;
        self.read += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::{Bytes, BytesMut};
    use iscsi::{
        Itt, Pdu, Serial, Ttt,
        codec::{Decoder, Digests, PduOutput},
        keys::Compression,
        pdu::NopOut,
    };
    use scsi::Lun;
    use tokio::{net::TcpSocket, time::timeout};

    use crate::{
        ConnectionStream, SocketOptions, TlsClient, TlsIdentity, TlsServer,
        certificates::Authority, receive, send,
    };

    /// The length of one PDU. The PDUs together are longer than what is encrypted or compressed
    /// ahead of the socket.
    const LENGTH: usize = 16 << 10;
    const COUNT: u32 = 24;

    async fn pair(secured: bool, compression: Option<Compression>) -> [ConnectionStream; 2] {
        // Use a small send buffer, so that the kernel accepts only parts of a TLS record or of a
        // frame at a time.
        let options = SocketOptions::buffers(Some(16 << 10));
        let socket = TcpSocket::new_v4().unwrap();
        options.apply(&socket).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let port = listener.local_addr().unwrap().port();
        let near = options.connect("127.0.0.1", port, |_| ()).await.unwrap();
        let far = listener.accept().await.unwrap().0;
        let ends: [ConnectionStream; 2] = if secured {
            let ours = Authority::new();
            let issued = ours.issue("127.0.0.1");
            let (certificate, key) = (issued.certificate.as_bytes(), issued.key.as_bytes());
            let own = TlsIdentity { certificate, key };
            let server = TlsServer::new(own, ours.certificate.as_bytes()).unwrap();
            let client = TlsClient::new(Some(own), ours.certificate.as_bytes(), None).unwrap();
            let (near, far) = tokio::join!(client.connect("127.0.0.1", near), server.accept(far));
            [near.unwrap(), far.unwrap()]
        } else {
            [near.into(), far.into()]
        };
        ends.map(|stream| match compression {
            Some(method) => stream.compress(method, BytesMut::new(), 0),
            None => stream,
        })
    }

    /// Returns bytes that cannot be compressed.
    fn noise(seed: u32) -> Bytes {
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let byte = |_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        };
        (0..LENGTH).map(byte).collect::<Vec<_>>().into()
    }

    /// A regression test. Bytes that were encrypted or compressed but not yet written used to count
    /// as sent, and bytes that had arrived did not count. A connection over a slow link then looked
    /// stalled.
    #[tokio::test]
    async fn bytes_received_by_the_peers_host_are_counted_exactly_below_tls_and_compression() {
        let [lz4, zstd] = [Some(Compression::Lz4), Some(Compression::Zstd)];
        for (secured, compression) in
            [(false, None), (true, None), (false, lz4), (false, zstd), (true, lz4)]
        {
            let [mut near, mut far] = pair(secured, compression).await;
            far.set_read_bytes(LENGTH);
            let mut output = PduOutput::default();
            for itt in 0..COUNT {
                let nop = NopOut {
                    immediate: true,
                    lun: Lun(0),
                    itt: Itt(itt),
                    ttt: Ttt::NONE,
                    cmd_sn: Serial(1),
                    exp_stat_sn: Serial(1),
                    data: noise(itt + 1),
                };
                output.push(Pdu::NopOut(nop), Digests::default());
            }
            let mut decoder = Decoder::new(LENGTH, 65_536);
            let mut frames = 0;
            while frames < COUNT {
                send(&mut near, &mut output).unwrap();
                let arrives = async {
                    loop {
                        if near.acknowledged().unwrap() == far.arrived().unwrap() {
                            return;
                        }
                        // Wait and look again: the kernel may delay its acknowledgment.
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                let arrived = timeout(Duration::from_secs(10), arrives).await;
                let counts = (near.acknowledged(), near.written(), far.arrived());
                assert!(arrived.is_ok(), "{secured} {compression:?} {frames}: {counts:?}");
                receive(&mut far, &mut decoder).unwrap();
                while decoder.next().unwrap().is_some() {
                    frames += 1;
                }
                tokio::task::yield_now().await;
            }
            assert!(output.is_empty());
            assert_eq!(near.written(), far.arrived().unwrap(), "{secured} {compression:?}");
        }
    }
}
