//! Compression over a stream: received frames are decompressed for the decoder, queued output is
//! compressed into frames.
//!
//! ```text
//! TCP or TLS ─▶ input ─▶ unpacker ─▶ decoder
//! output ─▶ begun (frames of at most 132 KiB of output) ─▶ TCP or TLS
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

/// A TCP or TLS stream that compresses the bytes after the end of the login.
///
/// - A frame never waits for more output. It contains the output that is queued at the moment when
///   the lower stream accepts more.
/// - Output stays in the caller's queue until the frame that contains it is written. The queue thus
///   always holds all unsent bytes.
/// - A caller that waits for the socket to be readable must first call `has_input`: bytes may
///   already be in `input` or decoded.
pub struct Compressed {
    lower: Lower,
    method: Compression,
    packer: Packer,
    unpacker: Unpacker,
    /// Bytes received from the stream below (TCP or TLS) that still have to be decoded.
    input: BytesMut,
    /// Number of bytes that one read of the stream below requests.
    read_bytes: usize,
    begun: UnwrittenFrames,
    bytes: LinkBytes,
}

/// The byte counts of a compressed connection, before and after compression. They do not include
/// the bytes that TLS and TCP add.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkBytes {
    pub method: Compression,
    /// Number of bytes sent, before compression.
    pub out: u64,
    /// Number of bytes sent, after compression.
    pub out_packed: u64,
    /// Number of bytes received, after decompression.
    pub in_: u64,
    /// Number of bytes received, before decompression.
    pub in_packed: u64,
}

/// The stream that carries the frames.
pub(crate) enum Lower {
    Tcp(Tcp),
    Tls(Box<Secured>),
}

/// The most bytes of output that are compressed before the lower stream has accepted the earlier
/// ones. A write of 128 KiB with its header then takes one system call. Of longer output, the peer
/// decodes one part while we compress the next.
const BEGUN_BYTES: usize = 132 << 10;

/// The maximum number of reads in one call. A compressed frame arrives in two reads. More are
/// limited, since a peer that sends very short pieces must not keep this thread busy.
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

    pub(crate) fn set_read_bytes(&mut self, bytes: usize) {
        self.read_bytes = bytes;
        if let Lower::Tls(stream) = &mut self.lower {
            stream.set_read_bytes(bytes);
        }
    }

    /// Releases the memory that an idle connection does not need.
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

    /// Returns true if received bytes are already in memory, which the readiness of the socket does
    /// not show.
    pub(crate) fn has_input(&self) -> bool {
        let below = match &self.lower {
            Lower::Tcp(_) => false,
            Lower::Tls(stream) => stream.has_input(),
        };
        below || self.unpacker.has_output(&self.input)
    }

    /// Polls the readiness of the socket. Call [`Compressed::has_input`] first.
    pub(crate) fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.has_input() {
            Poll::Ready(Ok(()))
        } else {
            self.tcp().stream().poll_read_ready(context)
        }
    }

    /// Decodes received bytes into `room`. If no complete frame has arrived, first calls `read`.
    /// Returns [`Received::Nothing`] if [`READS`] reads brought no complete frame.
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
            // The input holds at most an incomplete frame of less than 64 KiB, so the buffer has at
            // most 128 KiB after this read.
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

    /// Writes until the queue is empty or the socket accepts no more.
    pub(crate) fn send(
        &mut self,
        output: &mut PduOutput,
        mut write: impl FnMut(&mut TcpStream, &[IoSlice<'_>]) -> Poll<io::Result<usize>>,
    ) -> io::Result<SendProgress> {
        loop {
            let mut frames = QueuedFrames { begun: &mut self.begun, output };
            let sent = match &mut self.lower {
                Lower::Tcp(tcp) => write_all(tcp, &mut frames, &mut write)?,
                Lower::Tls(stream) => stream.send(&mut frames, &mut write)?,
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

/// The frames that were made and are not written completely.
#[derive(Default)]
struct UnwrittenFrames {
    /// The frame headers and compressed bytes, in the order of `parts`.
    made: Vec<u8>,
    /// The number of bytes of `made` that have been written.
    at: usize,
    /// The runs to write next, none of which is empty.
    parts: VecDeque<CompressedRun>,
}

/// A run of bytes to write, either from `made` or uncompressed from the caller's queue.
#[derive(Clone, Copy)]
struct CompressedRun {
    /// The number of bytes of `made` to write; 0 for an uncompressed run.
    made: usize,
    /// The number of bytes of the caller's queue that this run stands for. They are removed from
    /// the queue when the run is written. If `made` is 0, these bytes themselves are written,
    /// uncompressed.
    raw: usize,
}

impl UnwrittenFrames {
    /// Returns the state in which the next `length` bytes of the queue are written uncompressed.
    fn with_plain(length: usize) -> Self {
        let parts = (length > 0).then_some(CompressedRun { made: 0, raw: length });
        Self { parts: parts.into_iter().collect(), ..Self::default() }
    }

    /// Compresses the queued output into frames. The earlier frames must all be written. Returns
    /// two lengths in bytes: that of the frames' content, and that of the frames.
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

/// Returns the pieces of the queued output without its first `skipped` bytes.
fn from(output: &PduOutput, mut skipped: usize) -> impl Iterator<Item = &[u8]> {
    output.pieces().filter_map(move |piece| {
        let skip = skipped.min(piece.len());
        skipped -= skip;
        Some(&piece[skip..]).filter(|rest| !rest.is_empty())
    })
}

/// The frames that still have to be written, and the caller's queue from which they were made.
struct QueuedFrames<'a> {
    begun: &'a mut UnwrittenFrames,
    output: &'a mut PduOutput,
}

impl UnsentBytes for QueuedFrames<'_> {
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
