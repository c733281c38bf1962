//! Compressed frames: the format of compressed bytes on a link (docs/protocols.md, "Compression").
//!
//! ```text
//! 0       2         4
//! | raw   | packed  | packed bytes; if packed is 0, raw uncompressed bytes |
//! ```
//!
//! Both lengths are big-endian. `raw`, at least 1, is the length of the frame's content. `packed`
//! is the compressed length, which is below `raw`; content that does not shrink is stored with
//! `packed` = 0. Each frame is compressed independently: neither length can make a receiver hold
//! more than 64 KiB, and no state is carried from one frame to the next.

use bytes::{Buf, BufMut, BytesMut};
use iscsi::keys::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

/// Length of the header of a frame in bytes: two lengths.
pub const HEAD: usize = 4;

/// Maximum length of the content of a frame in bytes. The 16-bit field could express 65,535, but
/// LZ4 would then need a table of twice the size.
pub const RAW_MAX: usize = 65_534;

/// Content shorter than this is stored without trying to compress it. It is usually the response to
/// one command, which fits into one packet anyway.
const TRIED: usize = 256;

/// After a frame that compression did not shorten enough, this many bytes are stored without
/// another attempt. The number doubles after each failed attempt, up to [`UNTRIED_MAX`]. For
/// encrypted or compressed data, one attempt is then made per mebibyte.
const UNTRIED: usize = 64 << 10;
const UNTRIED_MAX: usize = 1 << 20;

/// A frame is sent compressed only if this makes it shorter by at least 1/`WORTH`.
const WORTH: usize = 16;

/// The compression level of Zstandard: the fastest of the positive levels, because all bytes of a
/// session are compressed.
const LEVEL: i32 = 1;

/// The error for received bytes that no correct sender produces.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Damaged {
    /// The header says that the content is empty, or that its compressed form is not shorter.
    #[error("invalid compressed frame: {packed} compressed bytes for {raw} bytes of content")]
    Lengths {
        /// The length of the content according to the header.
        raw: usize,
        /// The compressed length according to the header.
        packed: usize,
    },
    /// The content cannot be decompressed, or its length is not the one in the header.
    #[error("invalid compressed frame: the content does not have the announced length")]
    Content,
}

/// The result of [`Packer::pack`]: whether the content of a frame was compressed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Made {
    /// The frame's header and this number of compressed bytes were appended to the output.
    Packed(usize),
    /// Only the header was appended. The content follows uncompressed.
    Stored,
}

/// Compresses the output of a connection into frames.
pub struct Packer {
    squeezer: Squeezer,
    /// A buffer in which the pieces of a frame's content are joined before compression.
    raw: Vec<u8>,
    /// Number of bytes to store uncompressed before compression is tried again.
    untried: usize,
    /// The value to which `untried` was last set; 0 after content that compression shortened
    /// enough.
    pause: usize,
}

/// A compressor with its working memory. The memory is allocated at the first use and then kept.
enum Squeezer {
    Lz4(Option<CompressTable>),
    Zstd(Option<Compressor<'static>>),
}

impl Packer {
    #[must_use]
    pub fn new(method: Compression) -> Self {
        let squeezer = match method {
            Compression::Lz4 => Squeezer::Lz4(None),
            Compression::Zstd => Squeezer::Zstd(None),
        };
        Self { squeezer, raw: Vec::new(), untried: 0, pause: 0 }
    }

    /// Makes a frame of the first `length` bytes of `pieces`. Appends the header to `to`, and the
    /// content as well if it is compressed.
    ///
    /// # Panics
    /// If `length` is not in 1 to [`RAW_MAX`], or `pieces` are shorter than `length`.
    pub fn pack<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        length: usize,
        to: &mut Vec<u8>,
    ) -> Made {
        assert!((1..=RAW_MAX).contains(&length), "a frame of {length} bytes");
        if length >= TRIED && self.untried == 0 {
            self.raw.clear();
            for piece in pieces {
                let missing = length - self.raw.len();
                self.raw.extend_from_slice(&piece[..piece.len().min(missing)]);
                if self.raw.len() == length {
                    break;
                }
            }
            let start = to.len();
            head(length, 0, to);
            if let Some(packed) = self.squeezer.squeeze(&self.raw, to)
                && packed + length / WORTH <= length
            {
                to.truncate(start + HEAD + packed);
                to[start + 2..start + HEAD].copy_from_slice(&(packed as u16).to_be_bytes());
                self.pause = 0;
                return Made::Packed(packed);
            }
            to.truncate(start);
            self.pause = (self.pause * 2).clamp(UNTRIED, UNTRIED_MAX);
            self.untried = self.pause;
        } else {
            self.untried = self.untried.saturating_sub(length);
        }
        head(length, 0, to);
        Made::Stored
    }

    /// Releases memory that an idle connection does not need.
    pub fn rest(&mut self) {
        self.raw = Vec::new();
        match &mut self.squeezer {
            Squeezer::Lz4(table) => *table = None,
            Squeezer::Zstd(compressor) => *compressor = None,
        }
    }
}

fn head(raw: usize, packed: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&(raw as u16).to_be_bytes());
    to.extend_from_slice(&(packed as u16).to_be_bytes());
}

impl Squeezer {
    /// Appends the compressed form of `raw` to `to` and returns its length. The caller must remove
    /// the bytes after that length, which have no defined value. Returns `None` if the compressed
    /// form is longer than the space for it.
    fn squeeze(&mut self, raw: &[u8], to: &mut Vec<u8>) -> Option<usize> {
        let start = to.len();
        match self {
            Self::Lz4(table) => {
                to.resize(start + get_maximum_output_size(raw.len()), 0);
                let table = table.get_or_insert_with(CompressTable::small);
                compress_into_with_table(raw, &mut to[start..], table).ok()
            }
            Self::Zstd(compressor) => {
                to.resize(start + raw.len(), 0);
                if compressor.is_none() {
                    *compressor = Some(Compressor::new(LEVEL).ok()?);
                }
                compressor.as_mut()?.compress_to_buffer(raw, &mut to[start..]).ok()
            }
        }
    }
}

/// Decompresses the frames that a connection has received.
pub struct Unpacker {
    unsqueezer: Unsqueezer,
    /// The content of the last compressed frame. The bytes before `at` have been delivered.
    plain: Vec<u8>,
    at: usize,
    /// Number of bytes of an uncompressed frame that still have to be delivered.
    stored: usize,
}

enum Unsqueezer {
    Lz4,
    Zstd(Option<Decompressor<'static>>),
}

enum Head {
    Stored(usize),
    Packed { raw: usize, packed: usize },
}

impl Head {
    /// Parses the header of a frame. Returns `None` if `input` is shorter than a header.
    fn parse(input: &[u8]) -> Result<Option<Self>, Damaged> {
        let Some(&[a, b, c, d]) = input.first_chunk::<HEAD>() else { return Ok(None) };
        let (raw, packed) = (u16::from_be_bytes([a, b]).into(), u16::from_be_bytes([c, d]).into());
        match (raw, packed) {
            (1.., 0) => Ok(Some(Self::Stored(raw))),
            _ if packed < raw => Ok(Some(Self::Packed { raw, packed })),
            _ => Err(Damaged::Lengths { raw, packed }),
        }
    }
}

impl Unpacker {
    #[must_use]
    pub fn new(method: Compression) -> Self {
        let unsqueezer = match method {
            Compression::Lz4 => Unsqueezer::Lz4,
            Compression::Zstd => Unsqueezer::Zstd(None),
        };
        Self { unsqueezer, plain: Vec::new(), at: 0, stored: 0 }
    }

    /// Decodes frames from the front of `input` into `room` until `room` is full. Returns the
    /// number of decoded bytes; 0 means that `input` holds no complete frame. Removes the decoded
    /// frames from `input`.
    ///
    /// # Errors
    /// If no correct sender produces these bytes. The connection is unusable then.
    pub fn unpack(
        &mut self,
        input: &mut BytesMut,
        room: &mut impl BufMut,
    ) -> Result<usize, Damaged> {
        let mut count = 0;
        loop {
            let space = room.chunk_mut().len();
            if space == 0 {
                return Ok(count);
            }
            if self.at < self.plain.len() {
                let taken = space.min(self.plain.len() - self.at);
                room.put_slice(&self.plain[self.at..self.at + taken]);
                self.at += taken;
                count += taken;
            } else if self.stored > 0 {
                let taken = space.min(self.stored).min(input.len());
                if taken == 0 {
                    return Ok(count);
                }
                room.put_slice(&input[..taken]);
                input.advance(taken);
                self.stored -= taken;
                count += taken;
            } else {
                match Head::parse(input)? {
                    Some(Head::Stored(raw)) => {
                        input.advance(HEAD);
                        self.stored = raw;
                    }
                    Some(Head::Packed { raw, packed }) if input.len() >= HEAD + packed => {
                        self.open(&input[HEAD..HEAD + packed], raw)?;
                        input.advance(HEAD + packed);
                    }
                    _ => return Ok(count),
                }
            }
        }
    }

    fn open(&mut self, packed: &[u8], raw: usize) -> Result<(), Damaged> {
        self.at = 0;
        // Limit the output to the length in the header: a decompression bomb then cannot use more
        // memory.
        self.plain.resize(raw, 0);
        let unpacked = match &mut self.unsqueezer {
            Unsqueezer::Lz4 => lz4_flex::block::decompress_into(packed, &mut self.plain).ok(),
            Unsqueezer::Zstd(decompressor) => {
                if decompressor.is_none() {
                    *decompressor = Decompressor::new().ok();
                }
                let into = &mut self.plain[..];
                decompressor.as_mut().and_then(|d| d.decompress_to_buffer(packed, into).ok())
            }
        };
        if unpacked == Some(raw) {
            return Ok(());
        }
        self.plain.clear();
        Err(Damaged::Content)
    }

    /// Returns true if [`Unpacker::unpack`] would return bytes or an error.
    #[must_use]
    pub fn has_output(&self, input: &[u8]) -> bool {
        if self.at < self.plain.len() || self.stored > 0 {
            return self.stored == 0 || !input.is_empty();
        }
        match Head::parse(input) {
            Ok(None) => false,
            Ok(Some(Head::Stored(_))) => input.len() > HEAD,
            Ok(Some(Head::Packed { packed, .. })) => input.len() >= HEAD + packed,
            Err(_) => true,
        }
    }

    /// Releases memory that an idle connection does not need.
    pub fn rest(&mut self) {
        if self.at == self.plain.len() {
            (self.plain, self.at) = (Vec::new(), 0);
        }
        if let Unsqueezer::Zstd(decompressor) = &mut self.unsqueezer {
            *decompressor = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHODS: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    /// Returns bytes that cannot be compressed. Two calls with the same `length` return the same
    /// bytes.
    fn noise(length: usize) -> Vec<u8> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let next = |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..length).map(next).collect()
    }

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at / 7 % 11) as u8).collect()
    }

    /// Packs all bytes into frames, each with `length` bytes of content.
    fn packed(packer: &mut Packer, bytes: &[u8], length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for part in bytes.chunks(length) {
            // Pass two pieces, the second of which is longer than the frame needs.
            let (a, b) = bytes[part.as_ptr() as usize - bytes.as_ptr() as usize..].split_at(1);
            if packer.pack([a, b].into_iter(), part.len(), &mut all) == Made::Stored {
                all.extend_from_slice(part);
            }
        }
        all
    }

    #[test]
    fn packed_data_is_unpacked_however_it_is_divided() {
        let mixed = [text(70_000), noise(70_000), text(70_000), vec![0; 200_000]].concat();
        for method in METHODS {
            for length in [1, 255, 256, 4144, RAW_MAX] {
                let bytes = &mixed[..if length < 256 { 3000 } else { mixed.len() }];
                let sent = packed(&mut Packer::new(method), bytes, length);
                for (step, room) in [(1 << 20, 1 << 20), (1, 65_536), (1500, 7), (40_000, 4096)] {
                    let mut unpacker = Unpacker::new(method);
                    let (mut input, mut output) = (BytesMut::new(), Vec::new());
                    for part in sent.chunks(step) {
                        input.extend_from_slice(part);
                        loop {
                            let has_output = unpacker.has_output(&input);
                            let mut some = Vec::new();
                            let mut limited = (&mut some).limit(room);
                            let count = unpacker.unpack(&mut input, &mut limited).unwrap();
                            assert_eq!(has_output, count > 0);
                            output.extend_from_slice(&some);
                            if count == 0 {
                                break;
                            }
                        }
                    }
                    assert!(output == bytes, "{method:?}, {length}, {step}, {room}");
                }
            }
        }
    }

    #[test]
    fn incompressible_data_is_tried_less_often_and_compressible_data_is_noticed_again() {
        for method in METHODS {
            let mut packer = Packer::new(method);
            let noise = noise(4096);
            let mut tries = 0;
            for _ in 0..1024 {
                let was_tried = packer.untried == 0;
                tries += u32::from(was_tried);
                let made = packer.pack([&noise[..]].into_iter(), noise.len(), &mut Vec::new());
                assert_eq!(made, Made::Stored);
            }
            assert!((5..12).contains(&tries), "{tries} tries in 4 MiB");
            let text = text(4096);
            let frames = (1..1000).find(|_| {
                packer.pack([&text[..]].into_iter(), text.len(), &mut Vec::new()) != Made::Stored
            });
            assert!(frames.unwrap() <= UNTRIED_MAX / 4096 + 1);
            let made = packer.pack([&text[..]].into_iter(), text.len(), &mut Vec::new());
            assert!(matches!(made, Made::Packed(..400)), "{made:?}");
        }
    }

    fn unpack(method: Compression, raw: usize, packed: &[u8]) -> (Result<usize, Damaged>, usize) {
        let mut input = BytesMut::new();
        input.extend_from_slice(&(raw as u16).to_be_bytes());
        input.extend_from_slice(&(packed.len() as u16).to_be_bytes());
        input.extend_from_slice(packed);
        let mut unpacker = Unpacker::new(method);
        let result = unpacker.unpack(&mut input, &mut Vec::new());
        (result, unpacker.plain.capacity())
    }

    #[test]
    fn a_compression_bomb_is_limited_to_the_size_of_a_frame() {
        let zeros = vec![0; 8 << 20];
        let bomb = lz4_flex::block::compress(&zeros);
        for packed in [&bomb[..], &bomb[..300]] {
            let (result, held) = unpack(Compression::Lz4, 0xffff, packed);
            assert_eq!(result, Err(Damaged::Content));
            assert!(held <= 65_536);
        }
        let bomb = zstd::bulk::compress(&zeros, 1).unwrap();
        let (result, held) = unpack(Compression::Zstd, 0xffff, &bomb);
        assert_eq!(result, Err(Damaged::Content));
        assert!(held <= 65_536);
        // A hundred compressed frames in a row are a decompression bomb.
        let one = zstd::bulk::compress(&zeros[..60_000], 1).unwrap();
        assert_eq!(unpack(Compression::Zstd, 0xffff, &one.repeat(100)).0, Err(Damaged::Content));
    }

    #[test]
    fn a_frame_with_a_wrong_length_is_refused() {
        let bytes = text(5000);
        for method in METHODS {
            let mut frame = Vec::new();
            Packer::new(method).pack([&bytes[..]].into_iter(), bytes.len(), &mut frame);
            let content = &frame[HEAD..];
            assert_eq!(unpack(method, 5000, content).0, Ok(5000));
            for raw in [content.len() + 1, 4999, 5001, 0xffff] {
                assert_eq!(unpack(method, raw, content).0, Err(Damaged::Content), "{raw}");
            }
            for raw in [0, 1, content.len()] {
                let packed = content.len();
                assert_eq!(unpack(method, raw, content).0, Err(Damaged::Lengths { raw, packed }));
            }
            assert_eq!(unpack(method, 0, &[]).0, Err(Damaged::Lengths { raw: 0, packed: 0 }));
            let cut = &content[..content.len() / 2];
            assert_eq!(unpack(method, 5000, cut).0, Err(Damaged::Content));
        }
    }

    #[test]
    fn an_idle_connection_holds_little_memory_and_continues_afterwards() {
        for method in METHODS {
            let (mut packer, mut unpacker) = (Packer::new(method), Unpacker::new(method));
            for _ in 0..2 {
                let bytes = text(60_000);
                let sent = packed(&mut packer, &bytes, RAW_MAX);
                let (mut input, mut output) = (BytesMut::from(&sent[..]), Vec::new());
                unpacker.unpack(&mut input, &mut output).unwrap();
                assert!(output == bytes);
                packer.rest();
                unpacker.rest();
                assert_eq!((packer.raw.capacity(), unpacker.plain.capacity()), (0, 0));
            }
        }
    }
}
