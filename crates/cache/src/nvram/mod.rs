//! The NVRAM buffer. The buffer holds writes that are acknowledged before they are on the log disk, and the
//! number of the newest stable segment of the log.
//!
//! `docs/formats/nvram.md` describes the bytes.

mod layout;
mod memory;
mod slot_header;
mod contents;

pub(crate) use contents::{HeldNvramSlot, NvramContents, newest_write, owner};
pub use layout::length_for;
use layout::*;
pub(crate) use memory::BUFFER_MAGIC;
pub use memory::{MappedFile, NvramWatch, StableMemory};
use slot_header::{Damage, SlotHeader, is_whole, mended};

use std::io;

use journal::{
    BLOCK_BYTES, VERSION,
    bytes::{array, put, put_u32, put_u64, u32_at, u64_at},
    checksum::crc32c,
    identity::InstanceId,
    seal::{LogKey, Salt, SealedBlockId, Sealer, Which},
};

/// Keeps acknowledged writes in an NVRAM, a memory that survives a restart or a power loss, until the log has them.
///
/// If a write to the memory fails, the buffer writes nothing more to it. The memory then has the content of an earlier
/// moment, as after a crash:
///
/// - Each slot with a complete header has complete data.
/// - A slot with an older version of a block was freed only after the newer version was stable.
/// - If the release of a slot was not stored, the slot holds an older version than the log.
pub(crate) struct NvramBuffer {
    memory: Box<dyn StableMemory>,
    slots: u32,
    free: Vec<u32>,
    /// The cell of each pair in [`CELLS_AT`] that is written next.
    next_cells: [usize; 2],
    /// Slots with damaged headers, each with the header that [`NvramBuffer::mend`] writes.
    mending: Vec<(u32, [u8; ENTRY_BYTES])>,
    sealing: Option<Sealing>,
}

/// The key and counters with which an NVRAM encrypts its slots.
struct Sealing {
    key: LogKey,
    instance: InstanceId,
    salt: Salt,
    sealer: Sealer,
    /// Number of slots that were encrypted since the NVRAM was opened.
    count: u64,
}

impl NvramBuffer {
    /// Reads the memory and changes nothing. If `sealing` is given (a key and the salt of this opening), data
    /// that is put into the buffer is sealed.
    pub fn open(
        memory: Box<dyn StableMemory>,
        instance: InstanceId,
        sealing: Option<(LogKey, Salt)>,
    ) -> (Self, NvramContents) {
        let mut header = [0; HEADER_BYTES];
        if memory.len() >= BLOCK_BYTES {
            memory.read(0, &mut header);
        }
        let slots = slots_in(memory.len());
        let sealing = sealing.map(|(key, salt)| {
            let sealer = key.for_nvram(&instance.0, &salt);
            Sealing { key, instance, salt, sealer, count: 0 }
        });
        let mut buffer = Self {
            memory,
            slots,
            free: Vec::new(),
            next_cells: [0; 2],
            mending: Vec::new(),
            sealing,
        };
        let contents = buffer.contents(&header, instance);
        (buffer, contents)
    }

    fn contents(&mut self, header: &[u8], instance: InstanceId) -> NvramContents {
        // `format` clears the header first and writes the magic last. A header without the whole magic
        // therefore means that no write in the slots was ever acknowledged.
        let magic = &header[..MAGIC.len()];
        let unfinished = (0..MAGIC.len())
            .any(|n| magic[..n] == MAGIC[..n] && magic[n..].iter().all(|&byte| byte == 0));
        if magic[0] == 0 || unfinished {
            return NvramContents::Blank;
        }
        if !header.starts_with(MAGIC)
            || u32_at(header, CHECKSUM_AT) != crc32c(&header[..CHECKSUM_AT])
        {
            return NvramContents::Damaged(
                "its header is damaged, or is not that of an NVRAM".into(),
            );
        }
        if u32_at(header, VERSION_AT) != VERSION {
            return NvramContents::Version(u32_at(header, VERSION_AT));
        }
        let slots = u32_at(header, SLOTS_AT);
        if slots > self.slots {
            return NvramContents::Damaged(format!(
                "its header counts {slots} slots, more than it has room for"
            ));
        }
        self.slots = slots;
        let found = InstanceId(array(header, INSTANCE_AT));
        let (held, damage) = self.held();
        let count = damage.torn.len();
        if found != instance {
            return NvramContents::Other { instance: found, held: held.len() };
        }
        let mark = u32_at(header, MARK_AT);
        // One header may be torn: the crash interrupted its write, so that write was never acknowledged.
        if count > 1 {
            return NvramContents::DamagedSlots(format!(
                "{count} of its slots have damaged headers"
            ));
        }
        if let Some(bad) = held.iter().find(|held| !self.data_is_whole(held.index)) {
            return NvramContents::DamagedSlots(format!(
                "its data for slot {} is damaged",
                bad.slot
            ));
        }
        // Clear torn headers: otherwise they and the header that the next crash tears would count as damage.
        let void = damage.torn.iter().chain(&damage.unused);
        self.mending = void.map(|&index| (index, [0; ENTRY_BYTES])).collect();
        self.mending.extend(&damage.mended);
        if damage.unused.len() + damage.mended.len() > 0 {
            tracing::warn!(
                unused = damage.unused.len(),
                used = damage.mended.len(),
                "bits of slot headers in the NVRAM have flipped; nothing is lost"
            );
        }
        let pairs = [WATERMARK, BEGUN].map(|pair| self.pair(pair));
        self.next_cells = pairs.map(|(_, next)| next);
        let [watermark, begun] = pairs.map(|(number, _)| number);
        self.free = (0..slots).rev().filter(|i| held.iter().all(|h| h.index != *i)).collect();
        NvramContents::Ours { mark, held, watermark, begun }
    }

    /// Rewrites damaged headers as [`Self::open`] has decided.
    pub fn mend(&mut self) {
        for (index, entry) in std::mem::take(&mut self.mending) {
            self.write(entry_at(index), &entry);
        }
    }

    /// Zeros the data of all slots, none of which may be in use. Data of an earlier log or opening may be in
    /// clear text, or under a key that is to be forgotten.
    pub fn clear_data(&mut self) {
        for slot in 0..self.slots {
            let at = self.data_offset(slot);
            self.write(at, &[0; BLOCK_BYTES]);
        }
    }

    /// Takes the memory into use for a log, and discards its content. The log's superblock stores the mark,
    /// by which a later opening recognises the memory.
    pub fn format(&mut self, instance: InstanceId, mark: u32) {
        // After a crash in this function the header is blank or torn, and the slots are ignored.
        self.write(0, &[0; HEADER_BYTES]);
        self.mending.clear();
        self.slots = self.most_slots();
        for slot in 0..self.slots {
            self.write(entry_at(slot), &[0; ENTRY_BYTES]);
        }
        for cell in CELLS_AT.as_flattened() {
            self.write(*cell, &[0; CELL_BYTES]);
        }
        self.clear_data();
        let mut header = [0; HEADER_BYTES];
        put(&mut header, 0, MAGIC);
        put_u32(&mut header, VERSION_AT, VERSION);
        put_u32(&mut header, SLOTS_AT, self.slots);
        put(&mut header, INSTANCE_AT, &instance.0);
        put_u32(&mut header, MARK_AT, mark);
        let checksum = crc32c(&header[..CHECKSUM_AT]);
        put_u32(&mut header, CHECKSUM_AT, checksum);
        // Write the magic number last: a header that is torn before that begins with zeros.
        self.write(MAGIC.len(), &header[MAGIC.len()..]);
        self.write(0, MAGIC);
        self.free = (0..self.slots).rev().collect();
        self.next_cells = [0; 2];
    }

    /// Makes the memory blank, so that it no longer names its log. Call this after the log has stopped, when
    /// the memory need not reveal any more that its log is missing.
    pub fn retire(&mut self) {
        self.write(0, &[0; HEADER_BYTES]);
    }

    pub fn most_slots(&self) -> u32 {
        slots_in(self.memory.len())
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns true if data that is put into the buffer is stable.
    pub fn is_sound(&self) -> bool {
        self.memory.error().is_none()
    }

    /// Returns the error with which the memory has failed; see [`StableMemory::error`].
    pub fn error(&self) -> Option<&io::Error> {
        self.memory.error()
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Puts data into a free slot and returns the slot's index. The data is stable afterwards if the buffer
    /// [is sound](Self::is_sound).
    ///
    /// # Panics
    /// If no slot is free.
    pub fn put(&mut self, serial: u64, slot: u64, mask: u8, data: &[u8], checksum: u32) -> u32 {
        let index = self.free.pop().expect("a free slot was promised");
        let at = self.data_offset(index);
        let mut entry = [0; ENTRY_BYTES];
        let mut checksum = checksum;
        let mut block = [0; BLOCK_BYTES];
        let mut data = data;
        if let Some(sealing) = &mut self.sealing {
            block.copy_from_slice(data);
            sealing.count += 1;
            let which = Which(sealing.count, 0);
            let tag = sealing.sealer.seal(which, SealedBlockId { slot, mask, serial }, &mut block);
            checksum = crc32c(&block);
            data = &block;
            entry[ENTRY_FLAGS_AT] = SEALED;
            put(&mut entry, ENTRY_TAG_AT, &tag);
            put(&mut entry, ENTRY_SALT_AT, &sealing.salt);
            put_u64(&mut entry, ENTRY_COUNT_AT, sealing.count);
        }
        put_u64(&mut entry, ENTRY_SERIAL_AT, serial);
        put_u64(&mut entry, ENTRY_SLOT_AT, slot);
        put_u32(&mut entry, ENTRY_DATA_CHECKSUM_AT, checksum);
        entry[ENTRY_MASK_AT] = mask;
        let checksum = crc32c(&entry[..ENTRY_CHECKSUM_AT]);
        put_u32(&mut entry, ENTRY_CHECKSUM_AT, checksum);
        // Write the data before the header: a whole header states that its data is stable.
        self.write(at, data);
        self.write(entry_at(index), &entry);
        index
    }

    /// Frees a slot whose content is on the log disk or in a newer slot.
    pub fn release(&mut self, index: u32) {
        self.write(entry_at(index), &[0; ENTRY_BYTES]);
        self.free.push(index);
    }

    /// Records the number of the newest stable segment.
    pub fn set_watermark(&mut self, number: u64) {
        self.set_cell(WATERMARK, number);
    }

    /// Records the number of the newest segment that was begun. Call this before the segment is written to the log.
    pub fn note_begun(&mut self, number: u64) {
        self.set_cell(BEGUN, number);
    }

    fn set_cell(&mut self, pair: usize, number: u64) {
        let mut cell = [0; CELL_BYTES];
        put_u64(&mut cell, 0, number);
        let checksum = crc32c(&cell[..CELL_CHECKSUM_AT]);
        put_u32(&mut cell, CELL_CHECKSUM_AT, !checksum);
        // Write the two cells of a pair in turn: if a crash tears this one, the other is only one segment
        // behind.
        self.write(CELLS_AT[pair][self.next_cells[pair]], &cell);
        self.next_cells[pair] ^= 1;
    }

    /// Copies the data of a slot into `to`. Returns false if sealed data cannot be opened, or if data is in
    /// clear although there is a key.
    pub fn read(&self, held: HeldNvramSlot, to: &mut [u8]) -> bool {
        self.memory.read(self.data_offset(held.index), to);
        let entry = self.entry(held.index);
        let is_sealed = entry[ENTRY_FLAGS_AT] & SEALED != 0;
        let Some(sealing) = &self.sealing else { return !is_sealed };
        let sealer = sealing.key.for_nvram(&sealing.instance.0, &array(&entry, ENTRY_SALT_AT));
        let HeldNvramSlot { serial, slot, mask, .. } = held;
        let which = Which(u64_at(&entry, ENTRY_COUNT_AT), 0);
        let tag = array(&entry, ENTRY_TAG_AT);
        match sealer.open(which, SealedBlockId { slot, mask, serial }, &tag, to) {
            Some(opened) if is_sealed => {
                to.copy_from_slice(&opened[..]);
                true
            }
            _ => false,
        }
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        if self.is_sound() {
            self.memory.write(at, bytes);
        }
    }

    /// Returns the number that a pair of cells holds, and the index of the cell that is written next.
    fn pair(&self, pair: usize) -> (u64, usize) {
        let cells = CELLS_AT[pair].map(|at| {
            let mut cell = [0; CELL_BYTES];
            self.memory.read(at, &mut cell);
            let whole = u32_at(&cell, CELL_CHECKSUM_AT) == !crc32c(&cell[..CELL_CHECKSUM_AT]);
            if whole { u64_at(&cell, 0) } else { 0 }
        });
        if cells[0] >= cells[1] { (cells[0], 1) } else { (cells[1], 0) }
    }

    /// Returns the slots in use, in serial order, and the damaged headers.
    fn held(&self) -> (Vec<HeldNvramSlot>, Damage) {
        let (mut held, mut damage) = (Vec::new(), Damage::default());
        for index in 0..self.slots {
            let entry = match SlotHeader::read(&*self.memory, index) {
                SlotHeader::Free => continue,
                SlotHeader::Flipped => {
                    damage.unused.push(index);
                    continue;
                }
                SlotHeader::Torn => {
                    damage.torn.push(index);
                    continue;
                }
                SlotHeader::Mended(entry) => {
                    damage.mended.push((index, entry));
                    entry
                }
                SlotHeader::Whole(entry) => entry,
            };
            held.push(HeldNvramSlot {
                index,
                serial: u64_at(&entry, ENTRY_SERIAL_AT),
                slot: u64_at(&entry, ENTRY_SLOT_AT),
                mask: entry[ENTRY_MASK_AT],
            });
        }
        held.sort_unstable_by_key(|held| held.serial);
        (held, damage)
    }

    fn data_is_whole(&self, index: u32) -> bool {
        let entry = self.entry(index);
        let mut data = vec![0; BLOCK_BYTES];
        self.memory.read(self.data_offset(index), &mut data);
        crc32c(&data) == u32_at(&entry, ENTRY_DATA_CHECKSUM_AT)
    }

    /// Returns the header of slot `index`. If one bit of it has flipped, returns the repaired header.
    fn entry(&self, index: u32) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        self.memory.read(entry_at(index), &mut entry);
        if is_whole(&entry) { entry } else { mended(entry).unwrap_or(entry) }
    }

    fn data_offset(&self, index: u32) -> usize {
        data_at(self.slots as usize) + index as usize * BLOCK_BYTES
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const INSTANCE: InstanceId = InstanceId([5; 16]);

    /// A memory for tests. A copy of its bytes is what a power failure leaves.
    pub struct Plain(pub Vec<u8>);

    impl StableMemory for Plain {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn read(&self, offset: usize, to: &mut [u8]) {
            to.copy_from_slice(&self.0[offset..offset + to.len()]);
        }
        fn write(&mut self, offset: usize, from: &[u8]) {
            self.0[offset..offset + from.len()].copy_from_slice(from);
        }
    }

    fn dump(buffer: &NvramBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.memory.len()];
        buffer.memory.read(0, &mut bytes);
        bytes
    }

    fn sample() -> NvramBuffer {
        let memory = Box::new(Plain(vec![0; length_for(4) as usize]));
        let (mut buffer, contents) = NvramBuffer::open(memory, INSTANCE, None);
        assert_eq!(contents, NvramContents::Blank);
        buffer.format(INSTANCE, 77);
        for serial in [3, 1, 2] {
            let data = [serial as u8; BLOCK_BYTES];
            buffer.put(serial, serial * 10, 0xff, &data, crc32c(&data));
        }
        buffer.set_watermark(8);
        buffer.set_watermark(9);
        buffer.note_begun(10);
        buffer
    }

    fn reopen(bytes: Vec<u8>) -> (NvramBuffer, NvramContents) {
        NvramBuffer::open(Box::new(Plain(bytes)), INSTANCE, None)
    }

    #[test]
    fn writes_are_held_in_the_order_of_their_serial_numbers() {
        let mut buffer = sample();
        assert_eq!((buffer.slots(), buffer.free()), (4, 1));
        buffer.release(1);
        let (buffer, contents) = reopen(dump(&buffer));
        let NvramContents::Ours { mark, held, watermark, begun } = contents else {
            panic!("{contents:?}")
        };
        assert_eq!(mark, 77);
        assert_eq!(held.iter().map(|h| (h.serial, h.slot)).collect::<Vec<_>>(), [(2, 20), (3, 30)]);
        assert_eq!((watermark, begun, buffer.free()), (9, 10, 2));
        let mut data = [0; BLOCK_BYTES];
        assert!(buffer.read(held[1], &mut data));
        assert_eq!(data, [3; BLOCK_BYTES]);
    }

    #[test]
    fn encrypted_data_opens_only_with_its_own_key_at_its_own_position() {
        let key = LogKey::new(&[3; 64]);
        let memory = Box::new(Plain(vec![0; length_for(4) as usize]));
        let (mut buffer, _) = NvramBuffer::open(memory, INSTANCE, Some((key.clone(), [1; 12])));
        buffer.format(INSTANCE, 77);
        for serial in [1, 2] {
            buffer.put(serial, 10, 0xff, &[9; BLOCK_BYTES], 0);
        }
        // The next opening draws another salt, and still opens what the previous one has sealed.
        let (mut buffer, contents) =
            NvramBuffer::open(Box::new(Plain(dump(&buffer))), INSTANCE, Some((key, [2; 12])));
        buffer.put(3, 10, 0xff, &[9; BLOCK_BYTES], 0);
        let bytes = dump(&buffer);
        assert!(!bytes.windows(16).any(|part| part == [9; 16]), "in clear");
        let stored: std::collections::HashSet<_> =
            (0..3).map(|i| &bytes[data_at(4) + i * BLOCK_BYTES..][..BLOCK_BYTES]).collect();
        assert_eq!(stored.len(), 3, "the same content never looks the same");
        let NvramContents::Ours { held, .. } = contents else { panic!("{contents:?}") };
        let mut data = [0; BLOCK_BYTES];
        for held in held {
            assert!(buffer.read(held, &mut data) && data == [9; BLOCK_BYTES]);
            assert!(!buffer.read(HeldNvramSlot { slot: 11, ..held }, &mut data), "of another slot");
            let other = Some((LogKey::new(&[4; 64]), [2; 12]));
            let (other, _) = NvramBuffer::open(Box::new(Plain(bytes.clone())), INSTANCE, other);
            assert!(!other.read(held, &mut data), "with another key");
            assert!(!reopen(bytes.clone()).0.read(held, &mut data), "without a key");
        }
    }

    #[test]
    fn after_a_torn_watermark_write_the_previous_watermark_is_used() {
        let mut bytes = dump(&sample());
        bytes[CELLS_AT[WATERMARK][1]] ^= 1;
        let NvramContents::Ours { watermark, .. } = reopen(bytes).1 else { panic!() };
        assert_eq!(watermark, 8);
    }

    #[test]
    fn one_torn_header_counts_as_a_crash_and_two_count_as_damage() {
        let mut bytes = dump(&sample());
        bytes[entry_at(0)..][..4].fill(0x55);
        assert!(
            matches!(reopen(bytes.clone()).1, NvramContents::Ours { held, .. } if held.len() == 2)
        );
        bytes[entry_at(1)..][..4].fill(0x55);
        assert!(matches!(reopen(bytes).1, NvramContents::DamagedSlots(_)));
    }

    /// Regression: flipped bits counted as torn headers, and with two such headers the memory was refused.
    #[test]
    fn flipped_bits_in_headers_of_free_slots_do_not_refuse_the_nvram() {
        let mut buffer = sample();
        buffer.release(1);
        buffer.release(2);
        let mut bytes = dump(&buffer);
        let clean = bytes.clone();
        for (index, bit) in [(1, 77), (2, 3), (2, 500), (3, 0)] {
            bytes[entry_at(index) + bit / 8] ^= 1 << (bit % 8);
        }
        let (mut buffer, contents) = reopen(bytes.clone());
        assert!(matches!(contents, NvramContents::Ours { held, .. } if held.len() == 1));
        assert_eq!(buffer.free(), 3);
        assert!(dump(&buffer) == bytes, "a look changes nothing");
        buffer.mend();
        assert!(dump(&buffer) == clean, "they are zeros again");
    }

    #[test]
    fn a_flipped_bit_in_a_header_that_holds_a_write_loses_nothing() {
        let clean = dump(&sample());
        let newest = newest_write(&Plain(clean.clone()), INSTANCE);
        assert!(newest > 0);
        for bit in 0..ENTRY_BYTES * 8 {
            let mut bytes = clean.clone();
            for index in 0..3 {
                bytes[entry_at(index) + bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(newest_write(&Plain(bytes.clone()), INSTANCE), newest, "{bit}");
            let (mut buffer, contents) = reopen(bytes);
            assert!(
                matches!(contents, NvramContents::Ours { held, .. } if held.len() == 3),
                "{bit}"
            );
            buffer.mend();
            assert!(dump(&buffer) == clean, "{bit}");
        }
    }

    #[test]
    fn damaged_data_is_never_used() {
        let mut bytes = dump(&sample());
        bytes[data_at(4) + 5000] ^= 1;
        assert!(matches!(reopen(bytes).1, NvramContents::DamagedSlots(_)));
    }

    #[test]
    fn the_nvram_of_another_log_and_another_version_are_recognized() {
        let bytes = dump(&sample());
        let other = NvramBuffer::open(Box::new(Plain(bytes.clone())), InstanceId([6; 16]), None).1;
        assert_eq!(other, NvramContents::Other { instance: INSTANCE, held: 3 });
        let mut newer = bytes;
        put_u32(&mut newer, VERSION_AT, VERSION + 1);
        let checksum = crc32c(&newer[..CHECKSUM_AT]);
        put_u32(&mut newer, CHECKSUM_AT, checksum);
        assert_eq!(reopen(newer).1, NvramContents::Version(VERSION + 1));
    }
}
