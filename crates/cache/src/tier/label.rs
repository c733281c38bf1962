//! The label: the first block of a tier's disk. The label names the log that the tier belongs to. All other content
//! is void at an opening.
//!
//! `docs/formats/read-tier.md` describes the bytes.

use journal::{
    bytes::{array, put, put_u32, u32_at},
    checksum::crc32c,
    identity::InstanceId,
};

use crate::slots::sectors::SLOT_BYTES;

/// The content of the first block of a tier's disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TierLabel {
    /// The log whose cache uses the disk.
    pub instance: InstanceId,
    /// True if the data on a disk with this label is encrypted.
    pub is_sealed: bool,
}

/// The reason why a disk has no usable label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NoLabel {
    /// The blocks of the label are all zeros.
    Blank,
    /// The blocks of the label hold data of something else.
    Other,
    /// The label has this format version, which the program does not know.
    Version(u32),
}

impl TierLabel {
    pub fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        put(block, MAGIC, &MAGIC_BYTES);
        put_u32(block, VERSION, 1);
        put_u32(block, FLAGS, u32::from(self.is_sealed));
        put(block, INSTANCE, &self.instance.0);
        let checksum = crc32c(&block[..CHECKSUM]);
        put_u32(block, CHECKSUM, checksum);
    }

    /// Decodes the first blocks of a disk. If there is no label, all of them must be zeros for the disk to be
    /// blank.
    pub fn decode(blocks: &[u8]) -> Result<Self, NoLabel> {
        if blocks.iter().all(|&byte| byte == 0) {
            return Err(NoLabel::Blank);
        }
        let is_label = blocks.len() >= SLOT_BYTES
            && array::<8>(blocks, MAGIC) == MAGIC_BYTES
            && crc32c(&blocks[..CHECKSUM]) == u32_at(blocks, CHECKSUM);
        if !is_label {
            return Err(NoLabel::Other);
        }
        match u32_at(blocks, VERSION) {
            1 => Ok(Self {
                instance: InstanceId(array(blocks, INSTANCE)),
                is_sealed: u32_at(blocks, FLAGS) & 1 > 0,
            }),
            other => Err(NoLabel::Version(other)),
        }
    }
}

const MAGIC_BYTES: [u8; 8] = *b"FBYTIER\0";
const MAGIC: usize = 0;
const VERSION: usize = 8;
const FLAGS: usize = 12;
const INSTANCE: usize = 16;
/// The checksum is at the end of the first 512 bytes, which a disk writes as a whole or not at all.
const CHECKSUM: usize = 508;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_page::{rows, tables};

    #[test]
    fn the_format_page_matches_the_code() {
        let page = include_str!("../../../../docs/formats/read-tier.md");
        let fields = [
            ("magic", MAGIC, 8),
            ("version", VERSION, 4),
            ("flags", FLAGS, 4),
            ("log", INSTANCE, 16),
            ("reserved", INSTANCE + 16, CHECKSUM - INSTANCE - 16),
            ("checksum", CHECKSUM, 4),
            ("zeros", CHECKSUM + 4, SLOT_BYTES - CHECKSUM - 4),
        ];
        assert_eq!(tables(page), [rows(&fields)]);
    }

    #[test]
    fn a_label_is_decoded_as_it_was_encoded() {
        let label = TierLabel { instance: InstanceId([7; 16]), is_sealed: true };
        let mut blocks = vec![0; 2 * SLOT_BYTES];
        assert_eq!(TierLabel::decode(&blocks), Err(NoLabel::Blank));
        label.encode(&mut blocks[..SLOT_BYTES]);
        assert_eq!(TierLabel::decode(&blocks), Ok(label));
        blocks[SLOT_BYTES] = 1;
        assert_eq!(TierLabel::decode(&blocks), Ok(label), "what follows is void");
        blocks[20] ^= 1;
        assert_eq!(TierLabel::decode(&blocks), Err(NoLabel::Other));
        assert_eq!(TierLabel::decode(&[1]), Err(NoLabel::Other));
        label.encode(&mut blocks[..SLOT_BYTES]);
        put_u32(&mut blocks, VERSION, 2);
        let checksum = crc32c(&blocks[..CHECKSUM]);
        put_u32(&mut blocks, CHECKSUM, checksum);
        assert_eq!(TierLabel::decode(&blocks), Err(NoLabel::Version(2)));
    }

    #[test]
    fn a_disk_with_other_data_is_not_blank() {
        let mut blocks = vec![0; 32 * SLOT_BYTES];
        blocks[31 * SLOT_BYTES] = 1;
        assert_eq!(TierLabel::decode(&blocks), Err(NoLabel::Other));
    }
}
