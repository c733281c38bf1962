//! The mark of a log buffer. The mark is stored in the last block of the log disk. From it a later opening
//! learns whether it needs the NVRAM, and which one.

use journal::{
    BLOCK_BYTES,
    bytes::{array, put, put_u32, u32_at},
    checksum::crc32c,
};
use volume::{Data, Durability, Error, Extent, Lba, Stack};

use crate::confirmed::BootId;

/// Identifies the content of an NVRAM. A new id is drawn each time the NVRAM is cleared.
pub(super) type BufferId = [u8; 16];

/// The mark that a log buffer (NVRAM in front of a log leg) writes on its disk: `docs/formats/log-buffer.md`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct LogBufferMark {
    pub buffer: BufferId,
    /// True if the NVRAM may hold writes that the disk does not have.
    pub in_use: bool,
    /// The boot id of the machine when the gateway began to use the NVRAM; `None` if the NVRAM survives the
    /// loss of power.
    pub boot: Option<BootId>,
}

/// The content of the last block of a disk.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum FoundMark {
    /// The block is zeros: the disk was never used with an NVRAM.
    Blank,
    Mark(LogBufferMark),
    /// A mark of a later format version, which this program does not know.
    Version(u32),
    /// The block holds something else, or the mark is damaged.
    Garbage,
}

impl LogBufferMark {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        put(&mut block, 0, MAGIC);
        put_u32(&mut block, VERSION_AT, VERSION);
        let flags = if self.in_use { IN_USE } else { 0 } | self.boot.map_or(0, |_| HAS_BOOT);
        put_u32(&mut block, FLAGS_AT, flags);
        put(&mut block, BUFFER_AT, &self.buffer);
        put(&mut block, BOOT_AT, &self.boot.map_or([0; 16], |BootId(bytes)| bytes));
        let checksum = crc32c(&block[..CHECKSUM_AT]);
        put_u32(&mut block, CHECKSUM_AT, checksum);
        block
    }

    pub fn decode(block: &[u8]) -> FoundMark {
        if block.iter().all(|&byte| byte == 0) {
            return FoundMark::Blank;
        }
        let is_whole = block.len() == BLOCK_BYTES
            && block.starts_with(MAGIC)
            && u32_at(block, CHECKSUM_AT) == crc32c(&block[..CHECKSUM_AT]);
        if !is_whole {
            return FoundMark::Garbage;
        }
        if u32_at(block, VERSION_AT) != VERSION {
            return FoundMark::Version(u32_at(block, VERSION_AT));
        }
        let flags = u32_at(block, FLAGS_AT);
        FoundMark::Mark(Self {
            buffer: array(block, BUFFER_AT),
            in_use: flags & IN_USE != 0,
            boot: (flags & HAS_BOOT != 0).then(|| BootId(array(block, BOOT_AT))),
        })
    }

    /// Reads the last block of a log disk as a mark.
    pub async fn read(disk: &Stack) -> Result<FoundMark, Error> {
        let block = disk.read(Extent { lba: place(disk), blocks: 1 }).await?;
        Ok(Self::decode(&block.into_bytes()))
    }

    /// Writes the mark to the log disk with a stable write.
    pub async fn write(&self, disk: &Stack) -> Result<(), Error> {
        disk.write(place(disk), Data::from(self.encode()), Durability::Stable).await
    }
}

/// Returns the address of the block that holds the mark: the last one of the disk.
fn place(disk: &Stack) -> Lba {
    Lba(disk.geometry().blocks - 1)
}

const MAGIC: &[u8] = b"FBYLOGBM";
const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
const FLAGS_AT: usize = 12;
const BUFFER_AT: usize = 16;
const BOOT_AT: usize = 32;
const CHECKSUM_AT: usize = 4092;
const IN_USE: u32 = 1;
const HAS_BOOT: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_decoded_as_encoded_and_damage_is_detected() {
        for (in_use, boot) in
            [(true, None), (false, Some(BootId([7; 16]))), (true, Some(BootId([0; 16])))]
        {
            let mark = LogBufferMark { buffer: [3; 16], in_use, boot };
            let mut block = mark.encode();
            assert_eq!(LogBufferMark::decode(&block), FoundMark::Mark(mark));
            block[BUFFER_AT] ^= 1;
            assert_eq!(LogBufferMark::decode(&block), FoundMark::Garbage);
        }
        assert_eq!(LogBufferMark::decode(&[0; BLOCK_BYTES]), FoundMark::Blank);
    }

    #[test]
    fn the_format_page_matches_the_layout_of_the_mark() {
        use crate::format_page::{rows, tables};
        let fields = [
            ("magic", 0, 8),
            ("version", VERSION_AT, 4),
            ("flags", FLAGS_AT, 4),
            ("buffer id", BUFFER_AT, 16),
            ("boot", BOOT_AT, 16),
            ("checksum", CHECKSUM_AT, 4),
        ];
        let page = include_str!("../../../../docs/formats/log-buffer.md");
        assert_eq!(tables(page)[0], rows(&fields));
    }
}
