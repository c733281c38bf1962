//! Reads an NVRAM when a cache is opened: its content, and the log to which it belongs.

use super::{StableMemory, layout::*, slot_header::SlotHeader};
use journal::{
    BLOCK_BYTES,
    bytes::{array, u32_at, u64_at},
    checksum::crc32c,
    identity::InstanceId,
};

/// A slot of the NVRAM that holds acknowledged data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct HeldNvramSlot {
    /// The number of the slot in the NVRAM.
    pub index: u32,
    pub serial: u64,
    /// The slot of the volume that the data is for.
    pub slot: u64,
    pub mask: u8,
}

/// The content of an NVRAM when a cache is opened.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum NvramContents {
    /// The memory was never in use: it has no header, or one that was never finished.
    Blank,
    /// The memory belongs to this log. `held` has the acknowledged writes in serial order, `watermark` is the
    /// newest stable segment, and `begun` is the newest segment that was begun.
    Ours { mark: u32, held: Vec<HeldNvramSlot>, watermark: u64, begun: u64 },
    /// The NVRAM belongs to log `instance`, and holds `held` acknowledged writes of that log.
    Other { instance: InstanceId, held: usize },
    /// The NVRAM has a format version that this program does not know.
    Version(u32),
    /// The header is damaged and cannot say which log the memory belongs to; the text describes the damage.
    Damaged(String),
    /// The memory belongs to this log, and some slots are damaged; the text describes the damage.
    DamagedSlots(String),
}

/// Returns the log that uses the memory; `None` if the memory is blank or its header is damaged.
pub(crate) fn owner(memory: &dyn StableMemory) -> Option<InstanceId> {
    let mut header = [0; HEADER_BYTES];
    if memory.len() < BLOCK_BYTES {
        return None;
    }
    memory.read(0, &mut header);
    let is_whole =
        header.starts_with(MAGIC) && u32_at(&header, CHECKSUM_AT) == crc32c(&header[..CHECKSUM_AT]);
    is_whole.then(|| InstanceId(array(&header, INSTANCE_AT)))
}

/// Returns the number of the newest write of a log that the memory holds; 0 if it holds none. Changes nothing.
pub(crate) fn newest_write(memory: &dyn StableMemory, instance: InstanceId) -> u64 {
    if owner(memory) != Some(instance) {
        return 0;
    }
    let mut header = [0; HEADER_BYTES];
    memory.read(0, &mut header);
    let slots = u32_at(&header, SLOTS_AT).min(slots_in(memory.len()));
    let serials = (0..slots).filter_map(|index| match SlotHeader::read(memory, index) {
        SlotHeader::Whole(entry) | SlotHeader::Mended(entry) => {
            Some(u64_at(&entry, ENTRY_SERIAL_AT))
        }
        SlotHeader::Free | SlotHeader::Flipped | SlotHeader::Torn => None,
    });
    serials.max().unwrap_or(0)
}
