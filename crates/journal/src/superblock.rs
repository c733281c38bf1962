//! The superblock: the id of the log, the volume that it belongs to, where recovery begins, and up to which
//! segment the log is known to be stable.
//!
//! Blocks 0 and 1 hold two copies. Each change writes both, and the first copy is stable before the second is
//! written. A crash leaves at least one whole copy, which is the newest state or the one before it. A damaged
//! copy is repaired from the other one.

use volume::Geometry;

use crate::checksum::crc32c;
use crate::{
    BLOCK_BYTES, MIN_SEGMENT_SLOTS, VERSION,
    bytes::{array, put, put_u32, put_u64, u32_at, u64_at},
    identity::{InstanceId, LogVolumeIdentity},
    layout::{LAYOUT_BYTES, MOST_LAYOUTS, SegmentLayout},
    members::{self, MemberRecord},
    seal::KeyCheck,
    shape::{FIRST_BLOCK, MOST_FRAME_BLOCKS, least_ring, most_segment_slots},
};

/// The content of a superblock. `docs/formats/log-disk.md` describes its bytes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Superblock {
    /// The number of this state of the superblock: each change raises it. If both copies are whole,
    /// the one with the higher number is newer.
    pub sequence: u64,
    pub instance: InstanceId,
    /// The volume that the log belongs to. For several volumes it is their joined address space.
    pub identity: LogVolumeIdentity,
    pub log_blocks: u64,
    pub segment_slots: u32,
    /// The number of times that the log was opened.
    pub generation: u64,
    /// Number of the first segment written in this generation. Segments from here on must carry this
    /// generation: segments that an earlier opening discarded must never be mistaken for data.
    pub generation_first: u64,
    /// Number of the oldest segment that recovery needs.
    pub tail: u64,
    /// The block where segment `tail` begins, or would begin if it does not exist yet.
    pub tail_block: u32,
    /// Number of the newest segment known to be stable; `tail` - 1 if none is live.
    pub committed: u64,
    /// The highest serial of a write when the superblock was written.
    pub serial: u64,
    /// Every write up to this serial was in the log or in the lower volume when the superblock was written; 0
    /// if that is not known.
    pub complete: u64,
    /// True if the log was stopped cleanly: no segment after `committed` was ever begun.
    pub clean: bool,
    /// True if the NVRAM may hold acknowledged data that is not in the log.
    pub immediate: bool,
    /// The random number that identifies the NVRAM in use; 0 without an NVRAM.
    pub nvram: u32,
    /// True if the NVRAM recorded segment `committed` before that was written. An NVRAM with a lower number at the next
    /// opening is an older copy.
    pub noted: bool,
    /// The boot id of the machine, if the NVRAM loses its content when the machine restarts. `None` if the
    /// NVRAM keeps its content longer, or if the boot id is not known.
    pub boot: Option<[u8; 16]>,
    /// Number of blocks of the index at the end of the log.
    pub index_blocks: u32,
    pub frame_blocks: u32,
    /// Number of the oldest frame of the index that recovery looks at.
    pub index_tail: u64,
    /// Number of the first index frame written in this generation. See `generation_first`.
    pub index_first: u64,
    /// The generation whose claim on the lower volume was granted last; 0 if none was.
    pub granted: u64,
    /// Random numbers of openings: first of the one whose claim was granted last, then of those that asked
    /// for the claim since, oldest first; 0 for unused entries.
    pub openings: [u64; MAX_OPENINGS],
    /// Set if the data blocks of all segments are sealed: the check of their key.
    pub key: Option<KeyCheck>,
    /// The layouts of all segments from the tail on, oldest first. An empty list means that the ring is one
    /// zone.
    pub layouts: Vec<SegmentLayout>,
    pub members: Vec<MemberRecord>,
}

/// The reason why a block is not a superblock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum InvalidSuperblock {
    /// The block contains only zeros.
    Blank,
    /// The block is not a superblock, or is torn or damaged.
    Garbage,
    /// The superblock has this format version, which this program does not know.
    Version(u32),
}

impl Superblock {
    pub fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        let name = self.identity.name.as_bytes();
        assert!(name.len() <= MAX_NAME, "the name was checked when the cache was opened");
        put(block, MAGIC_AT, MAGIC);
        put_u32(block, VERSION_AT, VERSION);
        put_u32(block, SEGMENT_SLOTS_AT, self.segment_slots);
        put(block, INSTANCE_AT, &self.instance.0);
        put_u64(block, SEQUENCE_AT, self.sequence);
        put_u64(block, GENERATION_AT, self.generation);
        put_u64(block, GENERATION_FIRST_AT, self.generation_first);
        put_u64(block, LOG_BLOCKS_AT, self.log_blocks);
        put_u64(block, TAIL_AT, self.tail);
        put_u32(block, TAIL_BLOCK_AT, self.tail_block);
        let flags = u32::from(self.clean) * CLEAN
            + u32::from(self.immediate) * IMMEDIATE
            + u32::from(self.key.is_some()) * SEALED
            + u32::from(self.noted) * NOTED
            + u32::from(self.boot.is_some()) * HAS_BOOT;
        put_u32(block, FLAGS_AT, flags);
        put_u64(block, COMMITTED_AT, self.committed);
        put_u64(block, SERIAL_AT, self.serial);
        put_u64(block, COMPLETE_AT, self.complete);
        let geometry = &self.identity.geometry;
        put_u64(block, LOWER_BLOCKS_AT, geometry.blocks);
        put_u32(block, LOWER_BLOCK_SIZE_AT, geometry.block_size);
        put_u32(block, LOWER_PHYSICAL_AT, geometry.physical_block_size);
        let abilities = u32::from(geometry.thin) * THIN
            + u32::from(geometry.volatile_cache) * VOLATILE
            + u32::from(geometry.read_only) * READ_ONLY;
        put_u32(block, LOWER_FLAGS_AT, abilities);
        put_u32(block, NAME_LENGTH_AT, name.len() as u32);
        put(block, NAME_AT, name);
        put_u64(block, INDEX_TAIL_AT, self.index_tail);
        put_u64(block, INDEX_FIRST_AT, self.index_first);
        put_u32(block, INDEX_BLOCKS_AT, self.index_blocks);
        put_u32(block, FRAME_BLOCKS_AT, self.frame_blocks);
        put_u32(block, NVRAM_AT, self.nvram);
        put_u64(block, GRANTED_AT, self.granted);
        for (at, opening) in self.openings.iter().enumerate() {
            put_u64(block, OPENINGS_AT + 8 * at, *opening);
        }
        put(block, KEY_AT, &self.key.unwrap_or_default());
        self.encode_layouts(block);
        // Encode the boot id before the member records, whose checksum covers it.
        self.encode_boot(block);
        self.encode_members(block);
        let checksum = crc32c(&block[..CHECKSUM_AT]);
        put_u32(block, CHECKSUM_AT, checksum);
    }

    /// Encodes the layouts after the first 512 bytes. A disk may tear the block there, so the layouts have a
    /// checksum of their own, which is in the first 512 bytes.
    fn encode_layouts(&self, block: &mut [u8]) {
        let count = self.layouts.len();
        assert!(count <= MOST_LAYOUTS, "a resize that needs more is refused");
        put_u32(block, LAYOUT_COUNT_AT, count as u32);
        let records = block[LAYOUTS_AT..].chunks_exact_mut(LAYOUT_BYTES);
        records.zip(&self.layouts).for_each(|(record, layout)| layout.encode(record));
        // Without layouts the checksum stays 0, and the bytes after the first 512 are not read.
        if count > 0 {
            let checksum = crc32c(&block[LAYOUTS_AT..][..count * LAYOUT_BYTES]);
            put_u32(block, LAYOUTS_CHECKSUM_AT, checksum);
        }
    }

    fn decode_layouts(block: &[u8]) -> Option<Vec<SegmentLayout>> {
        let count = u32_at(block, LAYOUT_COUNT_AT) as usize;
        if count == 0 {
            return Some(Vec::new());
        }
        let bytes = block[LAYOUTS_AT..].get(..count * LAYOUT_BYTES)?;
        let right = count <= MOST_LAYOUTS && crc32c(bytes) == u32_at(block, LAYOUTS_CHECKSUM_AT);
        right.then(|| bytes.chunks_exact(LAYOUT_BYTES).map(SegmentLayout::decode).collect())?
    }

    /// Encodes the boot id at the end of the block. The checksum covers the sequence number too: if a disk
    /// tears the block, the boot id of another state must not be accepted.
    fn encode_boot(&self, block: &mut [u8]) {
        if let Some(boot) = self.boot {
            put(block, BOOT_AT, &boot);
            put_u32(block, BOOT_CHECKSUM_AT, self.boot_checksum(&boot));
        }
    }

    fn boot_checksum(&self, boot: &[u8; 16]) -> u32 {
        let mut bytes = [0; 24];
        put_u64(&mut bytes, 0, self.sequence);
        put(&mut bytes, 8, boot);
        crc32c(&bytes)
    }

    /// Encodes the members after the first 512 bytes. As for the layouts, their checksum is in the first 512
    /// bytes.
    fn encode_members(&self, block: &mut [u8]) {
        let count = self.members.len();
        put_u32(block, MEMBER_COUNT_AT, count as u32);
        if count > 0 {
            let fit = members::encode(&self.members, &mut block[MEMBERS_AT..BOOT_AT]);
            assert!(fit, "it was checked when the cache was opened");
            let checksum = crc32c(&block[MEMBERS_AT..]);
            put_u32(block, MEMBERS_CHECKSUM_AT, checksum);
        }
    }

    fn decode_members(block: &[u8]) -> Option<Vec<MemberRecord>> {
        let count = u32_at(block, MEMBER_COUNT_AT) as usize;
        if count == 0 {
            return Some(Vec::new());
        }
        let bytes = &block[MEMBERS_AT..];
        let right = crc32c(bytes) == u32_at(block, MEMBERS_CHECKSUM_AT);
        right.then(|| members::decode(count, u32_at(block, LOWER_BLOCK_SIZE_AT), bytes))?
    }

    /// Decodes a block of 4096 bytes. Every byte may be arbitrary.
    pub(crate) fn decode(block: &[u8]) -> Result<Self, InvalidSuperblock> {
        assert_eq!(block.len(), BLOCK_BYTES, "a block was read");
        if block.iter().all(|&byte| byte == 0) {
            return Err(InvalidSuperblock::Blank);
        }
        if block[MAGIC_AT..].iter().take(MAGIC.len()).ne(MAGIC)
            || u32_at(block, CHECKSUM_AT) != crc32c(&block[..CHECKSUM_AT])
        {
            return Err(InvalidSuperblock::Garbage);
        }
        let version = u32_at(block, VERSION_AT);
        if version != VERSION {
            return Err(InvalidSuperblock::Version(version));
        }
        let flags = u32_at(block, FLAGS_AT);
        let mut superblock = Self {
            sequence: u64_at(block, SEQUENCE_AT),
            instance: InstanceId(array(block, INSTANCE_AT)),
            identity: Self::decode_identity(block).ok_or(InvalidSuperblock::Garbage)?,
            log_blocks: u64_at(block, LOG_BLOCKS_AT),
            segment_slots: u32_at(block, SEGMENT_SLOTS_AT),
            generation: u64_at(block, GENERATION_AT),
            generation_first: u64_at(block, GENERATION_FIRST_AT),
            tail: u64_at(block, TAIL_AT),
            tail_block: u32_at(block, TAIL_BLOCK_AT),
            committed: u64_at(block, COMMITTED_AT),
            serial: u64_at(block, SERIAL_AT),
            complete: u64_at(block, COMPLETE_AT),
            clean: flags & CLEAN != 0,
            immediate: flags & IMMEDIATE != 0,
            nvram: u32_at(block, NVRAM_AT),
            noted: flags & NOTED != 0,
            boot: None,
            index_blocks: u32_at(block, INDEX_BLOCKS_AT),
            frame_blocks: u32_at(block, FRAME_BLOCKS_AT),
            index_tail: u64_at(block, INDEX_TAIL_AT),
            index_first: u64_at(block, INDEX_FIRST_AT),
            granted: u64_at(block, GRANTED_AT),
            openings: std::array::from_fn(|at| u64_at(block, OPENINGS_AT + 8 * at)),
            key: (flags & SEALED != 0).then(|| array(block, KEY_AT)),
            layouts: Self::decode_layouts(block).ok_or(InvalidSuperblock::Garbage)?,
            members: Self::decode_members(block).ok_or(InvalidSuperblock::Garbage)?,
        };
        if flags & HAS_BOOT != 0 {
            let boot = array(block, BOOT_AT);
            if superblock.boot_checksum(&boot) != u32_at(block, BOOT_CHECKSUM_AT) {
                return Err(InvalidSuperblock::Garbage);
            }
            superblock.boot = Some(boot);
        }
        if superblock.makes_sense() { Ok(superblock) } else { Err(InvalidSuperblock::Garbage) }
    }

    fn decode_identity(block: &[u8]) -> Option<LogVolumeIdentity> {
        let name = block[NAME_AT..][..MAX_NAME].get(..u32_at(block, NAME_LENGTH_AT) as usize)?;
        let name = std::str::from_utf8(name).ok()?.to_owned();
        let abilities = u32_at(block, LOWER_FLAGS_AT);
        let geometry = Geometry {
            block_size: u32_at(block, LOWER_BLOCK_SIZE_AT),
            physical_block_size: u32_at(block, LOWER_PHYSICAL_AT),
            blocks: u64_at(block, LOWER_BLOCKS_AT),
            read_only: abilities & READ_ONLY != 0,
            thin: abilities & THIN != 0,
            volatile_cache: abilities & VOLATILE != 0,
            ..Geometry::with_blocks(0)
        };
        Some(LogVolumeIdentity { name, geometry })
    }

    /// Checks the numbers that later arithmetic relies on. A correct checksum does not make them valid.
    fn makes_sense(&self) -> bool {
        const FAR: u64 = u64::MAX / 2;
        let numbers = [
            self.sequence,
            self.generation,
            self.generation_first,
            self.tail,
            self.committed,
            self.serial,
            self.complete,
            self.granted,
            self.identity.geometry.blocks,
            self.index_tail,
            self.index_first,
        ];
        let ring = u64::from(FIRST_BLOCK)..self.log_blocks.saturating_sub(self.index_blocks.into());
        (MIN_SEGMENT_SLOTS..=most_segment_slots(self.key.is_some())).contains(&self.segment_slots)
            && numbers.iter().all(|&number| number < FAR)
            && u32::try_from(self.log_blocks).is_ok()
            && ring.end >= u64::from(FIRST_BLOCK) + least_ring(self.segment_slots)
            && ring.contains(&u64::from(self.tail_block))
            && (1..=MOST_FRAME_BLOCKS).contains(&self.frame_blocks)
            && self.index_blocks.is_multiple_of(self.frame_blocks)
            && self.index_blocks > 0
            && matches!(self.identity.geometry.block_size, 512 | 4096)
            && (1..=self.committed + 1).contains(&self.tail)
            && self.layouts_make_sense()
    }
}

/// Longest name of a volume, in bytes.
pub const MAX_NAME: usize = 248;
/// Number of openings that are remembered: the one whose claim was granted last, the current one, and seven
/// that ended after they had asked for the claim and before they received the answer.
pub(crate) const MAX_OPENINGS: usize = volume::Claim::MOST_PREDECESSORS;

/// Returns true if a disk that begins with these bytes holds the log of a cache, of any version and however
/// damaged.
#[must_use]
pub fn is_log(begins: &[u8]) -> bool {
    begins[MAGIC_AT..].starts_with(MAGIC)
}

const MAGIC: &[u8] = b"FBYLOGSB";
const CLEAN: u32 = 1;
const IMMEDIATE: u32 = 2;
const SEALED: u32 = 4;
const NOTED: u32 = 8;
const HAS_BOOT: u32 = 16;
const THIN: u32 = 1;
const VOLATILE: u32 = 2;
const READ_ONLY: u32 = 4;

const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const SEGMENT_SLOTS_AT: usize = 12;
const INSTANCE_AT: usize = 16;
const SEQUENCE_AT: usize = 32;
const GENERATION_AT: usize = 40;
const GENERATION_FIRST_AT: usize = 48;
const LOG_BLOCKS_AT: usize = 56;
const TAIL_AT: usize = 64;
const TAIL_BLOCK_AT: usize = 72;
const FLAGS_AT: usize = 76;
const COMMITTED_AT: usize = 80;
const SERIAL_AT: usize = 88;
const LOWER_BLOCKS_AT: usize = 96;
const LOWER_BLOCK_SIZE_AT: usize = 104;
const LOWER_PHYSICAL_AT: usize = 108;
const LOWER_FLAGS_AT: usize = 112;
const NAME_LENGTH_AT: usize = 116;
const NAME_AT: usize = 120;
const GRANTED_AT: usize = NAME_AT + MAX_NAME;
const OPENINGS_AT: usize = GRANTED_AT + 8;
const INDEX_TAIL_AT: usize = OPENINGS_AT + 8 * MAX_OPENINGS;
const INDEX_FIRST_AT: usize = 448;
const INDEX_BLOCKS_AT: usize = 456;
const FRAME_BLOCKS_AT: usize = 460;
const KEY_AT: usize = 464;
const LAYOUT_COUNT_AT: usize = 480;
const LAYOUTS_CHECKSUM_AT: usize = 484;
const MEMBER_COUNT_AT: usize = 488;
const MEMBERS_CHECKSUM_AT: usize = 492;
const COMPLETE_AT: usize = 496;
const NVRAM_AT: usize = 504;
/// The checksum and all fields before it are in the first 512 bytes, which no disk tears. An interrupted
/// format therefore leaves a blank disk.
const CHECKSUM_AT: usize = 508;
const LAYOUTS_AT: usize = 512;
/// The member records begin after the records of the layouts.
const MEMBERS_AT: usize = LAYOUTS_AT + MOST_LAYOUTS * LAYOUT_BYTES;
/// Bytes for the records of all members.
pub const MEMBERS_BYTES: usize = BOOT_AT - MEMBERS_AT;
/// The boot id and its checksum follow the member records, at the end of the block.
const BOOT_AT: usize = BLOCK_BYTES - 20;
const BOOT_CHECKSUM_AT: usize = BLOCK_BYTES - 4;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::layout::Zone;

    pub(crate) fn sample() -> Superblock {
        Superblock {
            sequence: 7,
            instance: InstanceId(*b"0123456789abcdef"),
            identity: LogVolumeIdentity {
                name: "iqn.2001-04.com.example:disk,0".into(),
                geometry: Geometry::with_blocks(1 << 21),
            },
            log_blocks: 1 << 16,
            segment_slots: 128,
            generation: 3,
            generation_first: 90,
            tail: 80,
            tail_block: 500,
            committed: 99,
            serial: 12345,
            complete: 12340,
            clean: true,
            immediate: false,
            nvram: 77,
            noted: true,
            boot: None,
            index_blocks: 400,
            frame_blocks: 1,
            index_tail: 6,
            index_first: 8,
            granted: 2,
            openings: [5, 6, 0, 0, 0, 0, 0, 0],
            key: None,
            layouts: Vec::new(),
            members: Vec::new(),
        }
    }

    /// Name, offset and length in bytes of each field of a superblock. A test compares them with
    /// docs/formats/log-disk.md.
    pub(crate) const FIELDS: &[(&str, usize, usize)] = &[
        ("magic", MAGIC_AT, 8),
        ("version", VERSION_AT, 4),
        ("segment slots", SEGMENT_SLOTS_AT, 4),
        ("instance id", INSTANCE_AT, 16),
        ("sequence", SEQUENCE_AT, 8),
        ("generation", GENERATION_AT, 8),
        ("generation first", GENERATION_FIRST_AT, 8),
        ("log blocks", LOG_BLOCKS_AT, 8),
        ("tail", TAIL_AT, 8),
        ("tail block", TAIL_BLOCK_AT, 4),
        ("flags", FLAGS_AT, 4),
        ("committed", COMMITTED_AT, 8),
        ("serial", SERIAL_AT, 8),
        ("lower blocks", LOWER_BLOCKS_AT, 8),
        ("lower block size", LOWER_BLOCK_SIZE_AT, 4),
        ("lower physical block size", LOWER_PHYSICAL_AT, 4),
        ("lower flags", LOWER_FLAGS_AT, 4),
        ("name length", NAME_LENGTH_AT, 4),
        ("name", NAME_AT, MAX_NAME),
        ("granted", GRANTED_AT, 8),
        ("openings", OPENINGS_AT, 8 * MAX_OPENINGS),
        ("index tail", INDEX_TAIL_AT, 8),
        ("index first", INDEX_FIRST_AT, 8),
        ("index blocks", INDEX_BLOCKS_AT, 4),
        ("frame blocks", FRAME_BLOCKS_AT, 4),
        ("key check", KEY_AT, 16),
        ("layout count", LAYOUT_COUNT_AT, 4),
        ("layouts checksum", LAYOUTS_CHECKSUM_AT, 4),
        ("member count", MEMBER_COUNT_AT, 4),
        ("members checksum", MEMBERS_CHECKSUM_AT, 4),
        ("complete", COMPLETE_AT, 8),
        ("nvram", NVRAM_AT, 4),
        ("checksum", CHECKSUM_AT, 4),
        ("layouts", LAYOUTS_AT, MOST_LAYOUTS * LAYOUT_BYTES),
        ("members", MEMBERS_AT, MEMBERS_BYTES),
        ("boot", BOOT_AT, 16),
        ("boot checksum", BOOT_CHECKSUM_AT, 4),
    ];

    #[test]
    fn decoding_gives_what_was_encoded() {
        let mut block = vec![1; BLOCK_BYTES];
        sample().encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(sample()));
        let sealed = Superblock { key: Some([4; 16]), segment_slots: 96, ..sample() };
        sealed.encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(sealed));
    }

    #[test]
    fn a_boot_identifier_is_kept_and_a_torn_block_with_one_is_no_superblock() {
        let mut block = vec![1; BLOCK_BYTES];
        let members = vec![members::tests::sample(0, "journal")];
        for members in [members, Vec::new()] {
            let with_boot = Superblock { boot: Some([6; 16]), members, ..sample() };
            with_boot.encode(&mut block);
            assert_eq!(Superblock::decode(&block), Ok(with_boot));
        }
        // Build a torn block: the first 512 bytes have this state, the rest has the next one.
        let first = block[..512].to_vec();
        Superblock { boot: Some([6; 16]), sequence: 8, ..sample() }.encode(&mut block);
        block[..512].copy_from_slice(&first);
        assert_eq!(Superblock::decode(&block), Err(InvalidSuperblock::Garbage));
    }

    #[test]
    fn zeros_are_blank_and_a_newer_version_is_named() {
        assert_eq!(Superblock::decode(&[0; BLOCK_BYTES]), Err(InvalidSuperblock::Blank));
        let mut block = vec![0; BLOCK_BYTES];
        sample().encode(&mut block);
        put_u32(&mut block, VERSION_AT, VERSION + 1);
        let checksum = crc32c(&block[..CHECKSUM_AT]);
        put_u32(&mut block, CHECKSUM_AT, checksum);
        assert_eq!(Superblock::decode(&block), Err(InvalidSuperblock::Version(VERSION + 1)));
    }

    fn resized() -> Superblock {
        let zones = vec![Zone { first: 2, end: 9000 }, Zone { first: 9000, end: 60_000 }];
        let layouts = [(0, 2), (85, 9500)].map(|(first, start)| SegmentLayout {
            first,
            start,
            zones: zones.clone(),
        });
        Superblock { layouts: layouts.to_vec(), ..sample() }
    }

    #[test]
    fn layouts_are_kept_and_a_torn_block_is_no_superblock() {
        let mut block = vec![1; BLOCK_BYTES];
        resized().encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(resized()));
        for at in [512, 600, 700] {
            let mut torn = block.clone();
            torn[at] ^= 1;
            assert_eq!(Superblock::decode(&torn), Err(InvalidSuperblock::Garbage));
        }
        // Build a block of which only the first 512 bytes were written to the disk.
        block[512..].fill(0);
        assert_eq!(Superblock::decode(&block), Err(InvalidSuperblock::Garbage));
        let mut kept = Superblock { tail: 85, ..resized() };
        kept.keep_layouts(resized().layouts.into_iter());
        assert_eq!(kept.layouts.len(), 1);
    }

    #[test]
    fn members_are_kept_and_torn_ones_are_no_superblock() {
        let members = [(0, "iqn.2026-11.com.example:data,0"), (7, "journal")];
        let members = members.map(|(place, name)| members::tests::sample(place, name));
        let joined = Superblock { members: members.to_vec(), ..sample() };
        let mut block = vec![1; BLOCK_BYTES];
        joined.encode(&mut block);
        assert_eq!(Superblock::decode(&block), Ok(joined));
        for at in [MEMBERS_AT, MEMBERS_AT + 60, BLOCK_BYTES - 1] {
            let mut torn = block.clone();
            torn[at] ^= 1;
            assert_eq!(Superblock::decode(&torn), Err(InvalidSuperblock::Garbage));
        }
    }

    #[test]
    fn a_superblock_with_segment_number_0_is_refused() {
        let mut block = vec![0; BLOCK_BYTES];
        Superblock { tail: 0, ..sample() }.encode(&mut block);
        assert!(Superblock::decode(&block).is_err());
    }

    proptest! {
        #[test]
        fn a_superblock_with_one_flipped_bit_is_never_accepted(bit in 0..512 * 8usize) {
            let mut block = vec![0; BLOCK_BYTES];
            sample().encode(&mut block);
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Superblock::decode(&block).is_err());
        }

        #[test]
        fn hostile_fields_under_a_right_checksum_do_not_panic(
            fields in prop::collection::vec((0..800usize, any::<u8>()), 0..40),
        ) {
            let mut block = vec![0; BLOCK_BYTES];
            let members = vec![members::tests::sample(1, "one"), members::tests::sample(2, "two")];
            Superblock { members, ..resized() }.encode(&mut block);
            for (at, byte) in fields {
                block[if at < 600 { at } else { at - 600 + MEMBERS_AT }] = byte;
            }
            let checksum = crc32c(&block[MEMBERS_AT..]);
            put_u32(&mut block, MEMBERS_CHECKSUM_AT, checksum);
            let count = u32_at(&block, LAYOUT_COUNT_AT) as usize % 8;
            let checksum = crc32c(&block[LAYOUTS_AT..][..count * LAYOUT_BYTES]);
            put_u32(&mut block, LAYOUTS_CHECKSUM_AT, checksum);
            let checksum = crc32c(&block[..CHECKSUM_AT]);
            put_u32(&mut block, CHECKSUM_AT, checksum);
            let _ = Superblock::decode(&block);
        }
    }
}
