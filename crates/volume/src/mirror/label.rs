//! The label of a mirror leg: to which mirror the leg belongs, whether it may be used without the
//! other leg, and where the two legs may differ after a crash. The format is described in
//! `docs/formats/mirror.md`.

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};

/// The content of a label. A leg has two copies, and the one with the higher `count` is newer. They
/// are written alternately, so that one of them is valid at any time.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct MirrorLabel {
    pub mirror: [u8; 16],
    /// Number of blocks of the mirror.
    pub blocks: u64,
    /// Number of times that the label of this leg was written.
    pub count: u64,
    /// Counts the changes of the mirror's membership. The leg with the higher epoch has the newest content.
    pub epoch: u64,
    /// True if the other leg was lost in this epoch: writes since then are on this leg only.
    pub alone: bool,
    /// True if the leg has lost writes that it had acknowledged: see [`super::Mirror::note_loss`].
    pub has_lost: bool,
    /// A number that the user of the mirror has set to recognise its degraded state; 0: none was
    /// set.
    pub number: u64,
    /// Numbers of the regions in which the legs may differ, each below [`MOST_REGIONS`].
    pub dirty: Vec<u32>,
}

/// The reason why a block is not a valid label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum MirrorLabelError {
    /// The block of the label is all zeros.
    Blank,
    /// The block holds other data, or the label is torn or damaged.
    Garbage,
    Version(u32),
}

impl MirrorLabel {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; LABEL_BYTES];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(MAGIC_AT, MAGIC);
        put(VERSION_AT, &VERSION.to_le_bytes());
        let flags = if self.alone { ALONE } else { 0 } | if self.has_lost { HAS_LOST } else { 0 };
        put(FLAGS_AT, &flags.to_le_bytes());
        put(MIRROR_AT, &self.mirror);
        put(BLOCKS_AT, &self.blocks.to_le_bytes());
        put(COUNT_AT, &self.count.to_le_bytes());
        put(EPOCH_AT, &self.epoch.to_le_bytes());
        put(NUMBER_AT, &self.number.to_le_bytes());
        for &region in &self.dirty {
            block[DIRTY_AT + region as usize / 8] |= 1 << (region % 8);
        }
        let sum = checksum(Crc32Iscsi, &block[..CHECKSUM_AT]) as u32;
        block[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
        block
    }

    /// Decodes a label. Treats every byte as hostile.
    pub fn decode(block: &[u8]) -> Result<Self, MirrorLabelError> {
        if block.iter().all(|&byte| byte == 0) {
            return Err(MirrorLabelError::Blank);
        }
        let whole = block.len() == LABEL_BYTES
            && block.starts_with(MAGIC)
            && u64::from(u32_at(block, CHECKSUM_AT)) == checksum(Crc32Iscsi, &block[..CHECKSUM_AT]);
        if !whole {
            return Err(MirrorLabelError::Garbage);
        }
        let version = u32_at(block, VERSION_AT);
        if version != VERSION {
            return Err(MirrorLabelError::Version(version));
        }
        let map = &block[DIRTY_AT..DIRTY_AT + MOST_REGIONS as usize / 8];
        let label = Self {
            mirror: block[MIRROR_AT..MIRROR_AT + 16].try_into().expect("sixteen bytes"),
            blocks: u64_at(block, BLOCKS_AT),
            count: u64_at(block, COUNT_AT),
            epoch: u64_at(block, EPOCH_AT),
            alone: u32_at(block, FLAGS_AT) & ALONE != 0,
            has_lost: u32_at(block, FLAGS_AT) & HAS_LOST != 0,
            number: u64_at(block, NUMBER_AT),
            dirty: (0..MOST_REGIONS).filter(|r| map[*r as usize / 8] >> (r % 8) & 1 != 0).collect(),
        };
        let far = u64::MAX / 2;
        let sane = label.blocks > 0 && label.blocks < far && label.count < far && label.epoch < far;
        if sane { Ok(label) } else { Err(MirrorLabelError::Garbage) }
    }
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

/// Length of a label in bytes.
pub(super) const LABEL_BYTES: usize = 4096;
/// Maximum number of regions in which a mirror tracks writes. Each region has one bit in the label.
pub(super) const MOST_REGIONS: u32 = 24576;

const VERSION: u32 = 1;
/// Bits of the field "flags" of a label.
const ALONE: u32 = 1;
const HAS_LOST: u32 = 2;
const MAGIC: &[u8] = b"FBYMIRRO";
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const FLAGS_AT: usize = 12;
const MIRROR_AT: usize = 16;
const BLOCKS_AT: usize = 32;
const COUNT_AT: usize = 40;
const EPOCH_AT: usize = 48;
const NUMBER_AT: usize = 56;
const DIRTY_AT: usize = 512;
const CHECKSUM_AT: usize = 4092;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> MirrorLabel {
        MirrorLabel {
            mirror: *b"0123456789abcdef",
            blocks: 1000,
            count: 7,
            epoch: 3,
            alone: true,
            has_lost: false,
            number: 77,
            dirty: vec![0, 9, MOST_REGIONS - 1],
        }
    }

    #[test]
    fn decoding_gives_what_was_encoded() {
        for (alone, has_lost) in [(true, false), (false, true), (true, true)] {
            let label = MirrorLabel { alone, has_lost, ..sample() };
            assert_eq!(MirrorLabel::decode(&label.encode()), Ok(label));
        }
        assert_eq!(MirrorLabel::decode(&[0; LABEL_BYTES]), Err(MirrorLabelError::Blank));
    }

    #[test]
    fn the_format_page_matches_the_code() {
        let page = include_str!("../../../../docs/formats/mirror.md");
        let rows = [
            ("magic", MAGIC_AT, 8),
            ("version", VERSION_AT, 4),
            ("flags", FLAGS_AT, 4),
            ("mirror id", MIRROR_AT, 16),
            ("blocks", BLOCKS_AT, 8),
            ("count", COUNT_AT, 8),
            ("epoch", EPOCH_AT, 8),
            ("number", NUMBER_AT, 8),
            ("dirty", DIRTY_AT, MOST_REGIONS as usize / 8),
            ("checksum", CHECKSUM_AT, 4),
        ];
        for (name, at, bytes) in rows {
            let row = format!("| {name} | {at} | {bytes} |");
            assert!(page.contains(&row), "{row}");
        }
    }

    proptest! {
        #[test]
        fn a_label_with_one_flipped_bit_is_never_accepted(bit in 0..LABEL_BYTES * 8) {
            let mut block = sample().encode();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(MirrorLabel::decode(&block).is_err());
        }

        #[test]
        fn hostile_fields_under_a_right_checksum_do_not_panic(
            fields in prop::collection::vec((0..600usize, any::<u8>()), 0..40),
        ) {
            let mut block = sample().encode();
            for (at, byte) in fields {
                block[at] = byte;
            }
            let sum = checksum(Crc32Iscsi, &block[..CHECKSUM_AT]) as u32;
            block[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            let _ = MirrorLabel::decode(&block);
        }
    }
}
