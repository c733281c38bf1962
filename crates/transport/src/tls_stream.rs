//! TLS over a TCP stream: records from the socket are decrypted for the decoder, queued output is
//! encrypted into records.
//!
//! ```text
//! socket ─▶ input ─▶ session (one record, decrypted in place) ─▶ decoder
//! output ─▶ session (at most 64 KiB of records) ─▶ socket
//! ```

use std::{
    io::{self, BufRead, IoSlice, Read, Write},
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, BytesMut};
use rustls::Connection;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::{
    io_progress::{MAX_SLICES, Received, SendProgress},
    tcp::Tcp,
    unsent_bytes::{UnsentBytes, try_write},
};

/// A TCP stream after its TLS handshake.
///
/// - A caller that waits for the socket to be readable must first call `has_input`: bytes may
///   already be in `input`, or decrypted in `session`.
/// - Output is encrypted only after the kernel has accepted all earlier records. It is removed from
///   the caller's queue only after the kernel has accepted its record, so the queue always holds
///   all unsent bytes.
#[derive(Debug)]
pub struct Secured {
    tcp: Tcp,
    session: Connection,
    /// Bytes that were received from the socket and that `session` has not processed.
    input: BytesMut,
    /// Number of bytes that one read of the socket requests.
    read_bytes: usize,
    /// The number of bytes that are decrypted and that the decoder has not taken.
    plaintext: usize,
    /// The number of bytes at the front of the caller's output whose records are not completely
    /// written.
    sealed: usize,
    /// True if the peer has ended its output with close_notify, or if the socket's input has ended.
    closed: bool,
}

/// The number of bytes that one read requests before the login. One read suffices for a login PDU,
/// and five for a TLS record of any size.
const READ_BYTES: usize = 4096;

/// The most bytes that the peer may send in a handshake. A chain of four certificates has 8 KiB;
/// more can only be an attempt to exhaust memory.
const HANDSHAKE_BYTES: usize = 16 * 1024;

/// The most output that is encrypted before the socket has accepted the earlier records: four full
/// records. A read response of 128 KiB then takes two system calls.
const SEALED_BYTES: usize = 64 * 1024;

/// The maximum number of reads of the socket in one call. A TLS record of any size arrives in five
/// reads. More are limited, since a peer that sends records without content must not keep this
/// thread busy.
const READS: usize = 8;

impl Secured {
    /// Performs the TLS handshake. Bytes that arrive after it are kept for [`Secured::receive`].
    pub(crate) async fn handshake(tcp: TcpStream, mut session: Connection) -> io::Result<Self> {
        session.set_buffer_limit(Some(SEALED_BYTES));
        let mut stream = Self {
            tcp: tcp.into(),
            session,
            input: BytesMut::new(),
            read_bytes: READ_BYTES,
            plaintext: 0,
            sealed: 0,
            closed: false,
        };
        let mut received = 0;
        loop {
            while !stream.write_records(&mut try_write)? {
                stream.tcp.stream().writable().await?;
            }
            if !stream.session.is_handshaking() {
                return Ok(stream);
            }
            stream.tcp.stream().readable().await?;
            match stream.session.read_tls(&mut TryRead(&mut stream.tcp)) {
                Ok(0) => {
                    let why = "the peer closed the connection during the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok(count) => received += count,
                Err(error) if is_nothing(&error) => continue,
                Err(error) => return Err(error),
            }
            stream.process()?;
            if stream.session.is_handshaking() && received > HANDSHAKE_BYTES {
                let why = format!("the TLS handshake exceeds {HANDSHAKE_BYTES} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }

    pub(crate) fn tcp(&self) -> &Tcp {
        &self.tcp
    }

    pub(crate) fn set_read_bytes(&mut self, bytes: usize) {
        self.read_bytes = bytes;
    }

    /// Releases memory that an idle connection does not need.
    pub(crate) fn rest(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Returns true if received bytes are already in memory, which the readiness of the socket does
    /// not show.
    pub(crate) fn has_input(&self) -> bool {
        self.plaintext > 0 || !self.input.is_empty() || self.closed
    }

    /// Decrypts received bytes into `room`. If no complete TLS record has arrived, first calls
    /// `read`. Returns [`Received::Nothing`] if [`READS`] reads brought no complete record.
    pub(crate) fn receive(
        &mut self,
        room: &mut impl BufMut,
        mut read: impl FnMut(&mut TcpStream, &mut BytesMut) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Received>> {
        for _ in 0..READS {
            let count = self.decrypt(room)?;
            if count > 0 {
                return Poll::Ready(Ok(Received::Bytes(count)));
            }
            if self.closed {
                return Poll::Ready(Ok(Received::Closed));
            }
            // `input` is empty here, so that one read can fill all the reserved space.
            self.input.reserve(self.read_bytes);
            if std::task::ready!(self.tcp.read_by(&mut self.input, &mut read))? == 0 {
                self.closed = true;
                return Poll::Ready(Ok(Received::Closed));
            }
        }
        Poll::Ready(Ok(Received::Nothing))
    }

    /// Decrypts bytes from `input` into `buffer`, until `buffer` is full or `input` is empty.
    fn decrypt(&mut self, buffer: &mut impl BufMut) -> io::Result<usize> {
        let mut count = 0;
        loop {
            while self.plaintext > 0 {
                let room = buffer.chunk_mut().len();
                if room == 0 {
                    return Ok(count);
                }
                let mut reader = self.session.reader();
                let found = reader.fill_buf()?;
                let found = &found[..found.len().min(room)];
                let length = found.len();
                buffer.put_slice(found);
                reader.consume(length);
                count += length;
                self.plaintext -= length;
            }
            if self.input.is_empty() || self.closed {
                return Ok(count);
            }
            let taken = self.session.read_tls(&mut &self.input[..])?;
            self.input.advance(taken);
            self.process()?;
            self.closed |= taken == 0;
        }
    }

    /// Makes `session` process its input. After an error, sends the TLS alert about it to the peer,
    /// if the socket accepts it now.
    fn process(&mut self) -> io::Result<()> {
        match self.session.process_new_packets() {
            Ok(state) => {
                self.plaintext = state.plaintext_bytes_to_read();
                self.closed |= state.peer_has_closed();
                Ok(())
            }
            Err(error) => {
                let _ = self.write_records(&mut try_write);
                Err(io::Error::new(io::ErrorKind::InvalidData, error))
            }
        }
    }

    /// Writes until the queue is empty or the socket accepts no more.
    pub(crate) fn send(
        &mut self,
        output: &mut impl UnsentBytes,
        mut write: impl FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<SendProgress> {
        loop {
            match self.write_records(&mut write) {
                Ok(true) => output.advance(std::mem::take(&mut self.sealed)),
                Ok(false) => return Ok(SendProgress::Blocked),
                Err(error) => return Err(self.alert().unwrap_or(error)),
            }
            if output.is_empty() {
                return Ok(SendProgress::All);
            }
            let mut slices = [IoSlice::new(&[]); MAX_SLICES];
            let used = output.slices(&mut slices);
            self.sealed = self.session.writer().write_vectored(&slices[..used])?;
            if self.sealed == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
    }

    /// Writes the records that `session` has made. Returns false if the socket does not accept all
    /// of them now.
    fn write_records(
        &mut self,
        write: &mut impl FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<bool> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Writing { tcp: &mut self.tcp, write }) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// After a failed write, returns the TLS alert that the peer may have sent before it closed the
    /// connection. The alert says more than the error of the write.
    fn alert(&mut self) -> Option<io::Error> {
        while self.plaintext == 0 {
            match self.session.read_tls(&mut Recv(&mut self.tcp)) {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
            if let Err(error) = self.process() {
                return Some(error);
            }
        }
        None
    }

    /// Polls the readiness of the socket. Call [`Secured::has_input`] first.
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_input() {
            Poll::Ready(Ok(()))
        } else {
            self.tcp.stream().poll_read_ready(context)
        }
    }
}

impl Drop for Secured {
    /// Sends close_notify if the socket accepts it now. The peer can then distinguish this end from
    /// a broken connection.
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.write_records(&mut try_write);
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Reads the socket through the runtime, for rustls.
struct TryRead<'a>(&'a mut Tcp);

impl Read for TryRead<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read_now(|tcp| tcp.try_read(room))
    }
}

/// Reads the socket directly, for rustls.
struct Recv<'a>(&'a mut Tcp);

impl Read for Recv<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read_now(|tcp| (&*SockRef::from(tcp)).read(room))
    }
}

/// Writes to the socket for rustls.
struct Writing<'a, W> {
    tcp: &'a mut Tcp,
    write: &'a mut W,
}

impl<W> Write for Writing<'_, W>
where
    W: FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.tcp.write_by(slices, &mut *self.write) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
