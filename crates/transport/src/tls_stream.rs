//! TLS over a TCP stream: records from the socket into the decoder, queued output into records.
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
/// - What is in `input`, or decrypted in `session`, no readiness of the socket tells of: who waits
///   for input asks [`Secured::has_input`] first.
/// - Output is encrypted only when all that was encrypted before is with the kernel, and taken from
///   the caller's queue only when it is there, too: what the queue holds is what is unsent.
#[derive(Debug)]
pub struct Secured {
    tcp: Tcp,
    session: Connection,
    /// Came from the socket and not to the session yet.
    input: BytesMut,
    /// What one read of the socket asks for.
    read_bytes: usize,
    /// Decrypted, and not with the decoder yet, in bytes.
    plaintext: usize,
    /// The first so many bytes of the caller's output are encrypted, and not all of them written.
    sealed: usize,
    /// The peer has said that no more comes than what is here.
    closed: bool,
}

/// What a read asks for before login: a login PDU, and in five reads a record of any size.
const READ_BYTES: usize = 4096;

/// The most bytes that the handshake of one end may have. A chain of four certificates has 8 KiB;
/// more could only be meant to make us hold it.
const HANDSHAKE_BYTES: usize = 16 * 1024;

/// Output that is encrypted ahead of the socket: four full records, so that a read of 128 KiB takes
/// two system calls.
const SEALED_BYTES: usize = 64 * 1024;

/// Reads of the socket in one call. A record of any size comes in five; a peer that sends records
/// without content must not keep us here.
const READS: usize = 8;

impl Secured {
    /// Runs the handshake. What came after it stays for [`Secured::receive`].
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
                    let why = "closed during the TLS handshake";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok(count) => received += count,
                Err(error) if is_nothing(&error) => continue,
                Err(error) => return Err(error),
            }
            stream.process()?;
            if stream.session.is_handshaking() && received > HANDSHAKE_BYTES {
                let why = format!("a TLS handshake of more than {HANDSHAKE_BYTES} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }

    /// The socket below.
    pub(crate) fn tcp(&self) -> &Tcp {
        &self.tcp
    }

    /// What one read of the socket asks for from now on, in bytes.
    pub(crate) fn set_read_bytes(&mut self, bytes: usize) {
        self.read_bytes = bytes;
    }

    /// Gives back what is not needed while nothing comes.
    pub(crate) fn rest(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
    }

    /// Whether there is input that the socket does not tell of.
    pub(crate) fn has_input(&self) -> bool {
        self.plaintext > 0 || !self.input.is_empty() || self.closed
    }

    /// Fills the room, as far as it goes, with what is there or, if that is nothing, with what
    /// `read` brings. [`Received::Nothing`] if it brought no whole record in many reads.
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
            // There is nothing in it: it is all room.
            self.input.reserve(self.read_bytes);
            if std::task::ready!(self.tcp.read_by(&mut self.input, &mut read))? == 0 {
                self.closed = true;
                return Poll::Ready(Ok(Received::Closed));
            }
        }
        Poll::Ready(Ok(Received::Nothing))
    }

    /// From `input` through the session to the room, until that is full or nothing is left.
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

    /// Has the session look at what it was given. What it objects to the peer is told, if the
    /// socket takes it.
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

    /// Writes until the queue is empty or the socket takes no more.
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

    /// Writes the records that the session has made. False if the socket does not take all.
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

    /// What the peer has said before it closed, which tells more than that it has.
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

    /// Whether the socket has something, for who has asked [`Secured::has_input`].
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_input() {
            Poll::Ready(Ok(()))
        } else {
            self.tcp.stream().poll_read_ready(context)
        }
    }
}

impl Drop for Secured {
    /// Says that no more comes, so that the peer can tell it from a cut; if the socket takes it.
    fn drop(&mut self) {
        self.session.send_close_notify();
        let _ = self.write_records(&mut try_write);
    }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// The socket as the runtime sees it.
struct TryRead<'a>(&'a mut Tcp);

impl Read for TryRead<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read_now(|tcp| tcp.try_read(room))
    }
}

/// The socket past the runtime.
struct Recv<'a>(&'a mut Tcp);

impl Read for Recv<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.0.read_now(|tcp| (&*SockRef::from(tcp)).read(room))
    }
}

/// The socket as rustls writes to it.
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
