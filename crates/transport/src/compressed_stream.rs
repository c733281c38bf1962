//! Compression over a stream: parcels from below into the decoder, queued output into parcels.
//!
//! ```text
//! TCP or TLS ─▶ input ─▶ unpacker ─▶ decoder
//! output ─▶ begun (parcels of at most 132 KiB of it) ─▶ TCP or TLS
//! ```

use std::{
    collections::VecDeque,
    fmt,
    io::{self, IoSlice},
    task::{Context, Poll},
};

use bytes::{BufMut, BytesMut};
use iscsi::{codec::PduOutput, keys::Compression};
use tokio::net::TcpStream;

use crate::{
    compressed_frame::{HEAD, Made, Packer, RAW_MAX, Unpacker},
    io_progress::{Received, SendProgress},
    tcp::Tcp,
    tls_stream::Secured,
    unsent_bytes::{UnsentBytes, write_all},
};

/// A stream that compresses from the end of the login on.
///
/// - A parcel never waits for more output: it holds what is queued when the stream below takes it.
/// - What the caller's queue holds is what is unsent: it leaves that when its parcel is written.
/// - What is in `input` or unpacked no readiness of the socket tells of.
pub struct Compressed {
    lower: Lower,
    method: Compression,
    packer: Packer,
    unpacker: Unpacker,
    /// Came from below and is not unpacked.
    input: BytesMut,
    /// What one read asks for.
    read_bytes: usize,
    begun: UnwrittenFrames,
    bytes: LinkBytes,
}

/// What has passed through compression, in bytes: as the session sees it, and as it crosses the link,
/// TLS and TCP left out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkBytes {
    /// How it is compressed.
    pub method: Compression,
    /// Sent, before compression.
    pub out: u64,
    /// Sent, after it.
    pub out_packed: u64,
    /// Received, after it was unpacked.
    pub in_: u64,
    /// Received, as it came.
    pub in_packed: u64,
}

/// What it lies on.
pub(crate) enum Lower {
    Tcp(Tcp),
    Tls(Box<Secured>),
}

/// What is packed ahead of the stream below, of the caller's output: a write of 128 KiB with its header
/// leaves in one system call, and of what is longer one end unpacks the first while the other packs.
const BEGUN_BYTES: usize = 132 << 10;

/// Reads in one call. A packed parcel comes in two; a peer that sends less must not keep us here.
const READS: usize = 8;

impl Compressed {
    pub(crate) fn new(
        lower: Lower,
        method: Compression,
        rest: BytesMut,
        login_bytes: usize,
    ) -> Self {
        let bytes =
            LinkBytes { method, out: 0, out_packed: 0, in_: 0, in_packed: rest.len() as u64 };
        Self {
            lower,
            method,
            packer: Packer::new(method),
            unpacker: Unpacker::new(method),
            input: rest,
            read_bytes: RAW_MAX,
            begun: UnwrittenFrames::with_plain(login_bytes),
            bytes,
        }
    }

    pub(crate) fn tcp(&self) -> &Tcp {
        match &self.lower {
            Lower::Tcp(tcp) => tcp,
            Lower::Tls(stream) => stream.tcp(),
        }
    }

    pub(crate) fn bytes(&self) -> LinkBytes {
        self.bytes
    }

    /// What one read asks for from now on, in bytes.
    pub(crate) fn set_read_bytes(&mut self, bytes: usize) {
        self.read_bytes = bytes;
        if let Lower::Tls(stream) = &mut self.lower {
            stream.set_read_bytes(bytes);
        }
    }

    /// Gives back what is not needed while nothing comes.
    pub(crate) fn rest(&mut self) {
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        self.packer.rest();
        self.unpacker.rest();
        self.begun.rest();
        if let Lower::Tls(stream) = &mut self.lower {
            stream.rest();
        }
    }

    /// Whether there is input that the socket does not tell of.
    pub(crate) fn has_input(&self) -> bool {
        let below = match &self.lower {
            Lower::Tcp(_) => false,
            Lower::Tls(stream) => stream.has_input(),
        };
        below || self.unpacker.has_output(&self.input)
    }

    /// Whether the socket has something, for who has asked [`Compressed::has_input`].
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_input() {
            Poll::Ready(Ok(()))
        } else {
            self.tcp().stream().poll_read_ready(context)
        }
    }

    /// Fills the room, as far as it goes, with what is there or, if that is nothing, with what
    /// `read` brings. [`Received::Nothing`] if it brought no whole parcel in many reads.
    pub(crate) fn receive(
        &mut self,
        room: &mut impl BufMut,
        mut read: impl FnMut(&mut TcpStream, &mut BytesMut) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<Received>> {
        for _ in 0..READS {
            let count = self.unpacker.unpack(&mut self.input, room);
            let count = count.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if count > 0 {
                self.bytes.in_ += count as u64;
                return Poll::Ready(Ok(Received::Bytes(count)));
            }
            // A parcel that is not whole is below 64 KiB: with this, 128 KiB at most.
            self.input.reserve(self.read_bytes);
            let received = match &mut self.lower {
                Lower::Tcp(tcp) => {
                    match std::task::ready!(tcp.read_by(&mut self.input, &mut read))? {
                        0 => Received::Closed,
                        count => Received::Bytes(count),
                    }
                }
                Lower::Tls(stream) => {
                    let mut input = (&mut self.input).limit(self.read_bytes);
                    std::task::ready!(stream.receive(&mut input, &mut read))?
                }
            };
            match received {
                Received::Bytes(count) => self.bytes.in_packed += count as u64,
                Received::Nothing | Received::Closed => return Poll::Ready(Ok(received)),
            }
        }
        Poll::Ready(Ok(Received::Nothing))
    }

    /// Writes until the queue is empty or the socket takes no more.
    pub(crate) fn send(
        &mut self,
        output: &mut PduOutput,
        mut write: impl FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<SendProgress> {
        loop {
            let mut parcels = Parcels { begun: &mut self.begun, output };
            let sent = match &mut self.lower {
                Lower::Tcp(tcp) => write_all(tcp, &mut parcels, &mut write)?,
                Lower::Tls(stream) => stream.send(&mut parcels, &mut write)?,
            };
            if sent == SendProgress::Blocked || output.is_empty() {
                return Ok(sent);
            }
            let (raw, packed) = self.begun.fill(&mut self.packer, output);
            self.bytes.out += raw as u64;
            self.bytes.out_packed += packed as u64;
        }
    }
}

impl fmt::Debug for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressed").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Parcels that are made and not all written.
#[derive(Default)]
struct UnwrittenFrames {
    /// Heads and packed bytes, in the order of `parts`.
    made: Vec<u8>,
    /// The part of `made` before this is written.
    at: usize,
    /// What is to be written; none is without bytes to write.
    parts: VecDeque<CompressedRun>,
}

/// A run of bytes that are to be written.
#[derive(Clone, Copy)]
struct CompressedRun {
    /// So many of `made`.
    made: usize,
    /// They stand for so many of the caller's queue, which leave it with the last of them. If none
    /// are made, so many of the queue itself are written.
    raw: usize,
}

impl UnwrittenFrames {
    /// Only so many bytes that go as they are.
    fn with_plain(length: usize) -> Self {
        let parts = (length > 0).then_some(CompressedRun { made: 0, raw: length });
        Self { parts: parts.into_iter().collect(), ..Self::default() }
    }

    /// Makes parcels of what is queued; all before is written. Returns what they hold, and how long
    /// they are.
    fn fill(&mut self, packer: &mut Packer, output: &PduOutput) -> (usize, usize) {
        debug_assert!(self.parts.is_empty(), "what was begun comes first");
        self.made.clear();
        self.at = 0;
        let (mut raw, mut stored) = (0, 0);
        let end = output.len().min(BEGUN_BYTES);
        while raw < end {
            let length = (end - raw).min(RAW_MAX);
            let start = self.made.len();
            match packer.pack(from(output, raw), length, &mut self.made) {
                Made::Packed(_) => {
                    self.parts
                        .push_back(CompressedRun { made: self.made.len() - start, raw: length });
                }
                Made::Stored => {
                    self.parts.push_back(CompressedRun { made: HEAD, raw: 0 });
                    self.parts.push_back(CompressedRun { made: 0, raw: length });
                    stored += length;
                }
            }
            raw += length;
        }
        (raw, self.made.len() + stored)
    }

    fn rest(&mut self) {
        if self.parts.is_empty() {
            self.made = Vec::new();
            self.at = 0;
        }
    }
}

/// The pieces of a queue from this byte on.
fn from(output: &PduOutput, mut skipped: usize) -> impl Iterator<Item = &[u8]> {
    output.pieces().filter_map(move |piece| {
        let skip = skipped.min(piece.len());
        skipped -= skip;
        Some(&piece[skip..]).filter(|rest| !rest.is_empty())
    })
}

/// What was begun, with the queue that it was made of.
struct Parcels<'a> {
    begun: &'a mut UnwrittenFrames,
    output: &'a mut PduOutput,
}

impl UnsentBytes for Parcels<'_> {
    fn is_empty(&self) -> bool {
        self.begun.parts.is_empty()
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let (mut used, mut at, mut offset) = (0, self.begun.at, 0);
        let mut put = |bytes: &'a [u8]| match slices.get_mut(used) {
            Some(slice) => {
                *slice = IoSlice::new(bytes);
                used += 1;
                true
            }
            None => false,
        };
        'parts: for &CompressedRun { made, raw } in &self.begun.parts {
            if made > 0 {
                if !put(&self.begun.made[at..at + made]) {
                    break;
                }
                at += made;
            } else {
                let mut left = raw;
                for piece in from(self.output, offset) {
                    let piece = &piece[..piece.len().min(left)];
                    left -= piece.len();
                    if !put(piece) {
                        break 'parts;
                    }
                    if left == 0 {
                        break;
                    }
                }
            }
            offset += raw;
        }
        used
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let part = self.begun.parts.front_mut().expect("no more is written than was begun");
            if part.made > 0 {
                let written = count.min(part.made);
                (part.made, self.begun.at) = (part.made - written, self.begun.at + written);
                count -= written;
                if part.made == 0 {
                    self.output.advance(part.raw);
                    self.begun.parts.pop_front();
                }
            } else {
                let written = count.min(part.raw);
                part.raw -= written;
                count -= written;
                self.output.advance(written);
                if part.raw == 0 {
                    self.begun.parts.pop_front();
                }
            }
        }
    }
}
