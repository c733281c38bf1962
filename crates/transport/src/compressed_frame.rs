//! Parcels: how compressed bytes stand on a link (docs/protocols.md, "Compression").
//!
//! ```text
//! 0       2         4
//! | raw   | packed  | packed bytes; if packed is 0, raw bytes as they are |
//! ```
//!
//! Both lengths are big-endian. `raw`, at least 1, is what the parcel holds; what does not shrink is
//! stored, so `packed` is below it. Each parcel is compressed by itself: neither length can make
//! anybody hold more than 64 KiB, and nothing has to be remembered from one to the next.

use bytes::{Buf, BufMut, BytesMut};
use iscsi::keys::Compression;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};

/// A parcel begins with two lengths.
pub const HEAD: usize = 4;

/// What a parcel holds at most, in bytes. A field of 16 bits could say one more, and LZ4 would need
/// a table of twice the size.
pub const RAW_MAX: usize = 65_534;

/// Less than this is stored untried: the answer to one command, which leaves in one packet anyway.
const TRIED: usize = 256;

/// After data that does not shrink so much is stored untried, and twice as much each time after, up
/// to [`UNTRIED_MAX`]: then what is encrypted or compressed already costs one try in a mebibyte.
const UNTRIED: usize = 64 << 10;
const UNTRIED_MAX: usize = 1 << 20;

/// A parcel is worth unpacking if this part of it is saved.
const WORTH: usize = 16;

/// Zstandard's level: the fastest of its ordinary ones, since every byte of a session passes here.
const LEVEL: i32 = 1;

/// What a peer cannot have packed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Damaged {
    /// An empty parcel, or one that grew.
    #[error("a parcel of {raw} bytes packed into {packed}")]
    Lengths {
        /// As in its head.
        raw: usize,
        /// As in its head.
        packed: usize,
    },
    /// What is in it cannot be unpacked, or is not as long as its head says.
    #[error("a parcel that does not unpack to its length")]
    Content,
}

/// How a parcel was made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Made {
    /// Its head and so many packed bytes were appended.
    Packed(usize),
    /// Only its head was appended: the bytes follow as they are.
    Stored,
}

/// Makes parcels.
pub struct Packer {
    squeezer: Squeezer,
    /// The bytes of one parcel, gathered.
    raw: Vec<u8>,
    /// So many bytes go untried.
    untried: usize,
    /// What `untried` was set to last; 0 after data that shrank.
    pause: usize,
}

/// A compressor with the memory that it uses again; none before it is first needed.
enum Squeezer {
    Lz4(Option<CompressTable>),
    Zstd(Option<Compressor<'static>>),
}

impl Packer {
    /// One that has packed nothing yet.
    #[must_use]
    pub fn new(method: Compression) -> Self {
        let squeezer = match method {
            Compression::Lz4 => Squeezer::Lz4(None),
            Compression::Zstd => Squeezer::Zstd(None),
        };
        Self { squeezer, raw: Vec::new(), untried: 0, pause: 0 }
    }

    /// Makes a parcel of the first `length` bytes of `pieces`, which have so many: 1 to [`RAW_MAX`].
    ///
    /// # Panics
    /// If `length` is out of this range.
    pub fn pack<'a>(
        &mut self,
        pieces: impl Iterator<Item = &'a [u8]>,
        length: usize,
        to: &mut Vec<u8>,
    ) -> Made {
        assert!((1..=RAW_MAX).contains(&length), "a parcel of {length} bytes");
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

    /// Gives memory back.
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
    /// Appends what `raw` becomes, with anything after it, and says how long it is. `None` if it
    /// could not be compressed into about its own length.
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

/// Takes parcels apart.
pub struct Unpacker {
    unsqueezer: Unsqueezer,
    /// The last parcel that was packed; before `at` it has been taken.
    plain: Vec<u8>,
    at: usize,
    /// So many bytes of a stored parcel are still to come.
    stored: usize,
}

enum Unsqueezer {
    Lz4,
    Zstd(Option<Decompressor<'static>>),
}

/// What the head of a parcel says.
enum Head {
    Stored(usize),
    Packed { raw: usize, packed: usize },
}

impl Head {
    /// Nothing if it is not all there.
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
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(method: Compression) -> Self {
        let unsqueezer = match method {
            Compression::Lz4 => Unsqueezer::Lz4,
            Compression::Zstd => Unsqueezer::Zstd(None),
        };
        Self { unsqueezer, plain: Vec::new(), at: 0, stored: 0 }
    }

    /// Takes from the front of `input` what can be unpacked, and puts it where there is room, until
    /// there is none. Returns how much that was, in bytes; 0 means that `input` has no whole parcel.
    ///
    /// # Errors
    /// What a peer cannot have packed; the connection is of no use then.
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
        // No more is unpacked than there is room for.
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

    /// Whether [`Unpacker::unpack`] has something to give, or to complain of.
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

    /// Gives memory back.
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

    /// Bytes that do not shrink, always the same.
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

    /// All in parcels of this length.
    fn packed(packer: &mut Packer, bytes: &[u8], length: usize) -> Vec<u8> {
        let mut all = Vec::new();
        for part in bytes.chunks(length) {
            // In two pieces, the second longer than what is asked for.
            let (a, b) = bytes[part.as_ptr() as usize - bytes.as_ptr() as usize..].split_at(1);
            if packer.pack([a, b].into_iter(), part.len(), &mut all) == Made::Stored {
                all.extend_from_slice(part);
            }
        }
        all
    }

    #[test]
    fn what_is_packed_is_unpacked_however_it_comes() {
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
    fn what_does_not_shrink_is_tried_ever_more_seldom_and_what_does_is_found_again() {
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
            let parcels = (1..1000).find(|_| {
                packer.pack([&text[..]].into_iter(), text.len(), &mut Vec::new()) != Made::Stored
            });
            assert!(parcels.unwrap() <= UNTRIED_MAX / 4096 + 1);
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
    fn a_bomb_unpacks_to_no_more_than_a_parcel_may_hold() {
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
        // Frames one after the other are one bomb.
        let one = zstd::bulk::compress(&zeros[..60_000], 1).unwrap();
        assert_eq!(unpack(Compression::Zstd, 0xffff, &one.repeat(100)).0, Err(Damaged::Content));
    }

    #[test]
    fn a_parcel_that_lies_is_refused() {
        let bytes = text(5000);
        for method in METHODS {
            let mut parcel = Vec::new();
            Packer::new(method).pack([&bytes[..]].into_iter(), bytes.len(), &mut parcel);
            let content = &parcel[HEAD..];
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
    fn who_rests_holds_little_and_goes_on_afterwards() {
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
