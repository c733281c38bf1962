//! The NVRAM at an opening: checks that it belongs to the log, decides which of its writes are needed, and
//! replays these into the log.

use std::sync::Arc;

use journal::{checksum::crc32c, recovery::Scan, superblock::Superblock};

use crate::{
    core::CacheCore,
    nvram::{HeldNvramSlot, NvramBuffer, NvramContents, StableMemory},
    open::{key::OpeningKey, older},
    random::random,
    refusal::CacheOpenError,
    rules::ModeRules,
    settings::Settings,
    slots::{
        sectors::SLOT_BYTES,
        table::{Came, NONE},
    },
};

/// The NVRAM and its contents, as found when the cache is opened.
pub(super) struct FoundNvram {
    pub buffer: Option<NvramBuffer>,
    /// The mark by which the log recognises its NVRAM; 0 if there is no NVRAM.
    mark: u32,
    /// Acknowledged writes that the NVRAM holds, in the order of their serials.
    pub held: Vec<HeldNvramSlot>,
    /// The number of the newest segment that the NVRAM has recorded as stable.
    pub watermark: Option<u64>,
    /// The number of the newest segment that the NVRAM has recorded as stable or as begun.
    pub noted: Option<u64>,
    /// The changes to make once no check can refuse the opening any more.
    pub change: NvramChange,
}

/// The changes that an opening makes to an NVRAM before the NVRAM is used.
#[derive(Default)]
pub(super) struct NvramChange {
    /// True to format the NVRAM, because this log has not used it before.
    formats: bool,
    /// Slots whose writes the log does not need.
    pub released: Vec<u32>,
    /// True to overwrite the data of all slots of the NVRAM.
    pub clears_data: bool,
}

impl FoundNvram {
    /// Reads the NVRAM, and decides how to use it. Changes nothing, since later checks may still refuse the
    /// opening. `is_void` means that the NVRAM may have lost writes in a reboot, and must not be used.
    pub fn read(
        memory: Option<Box<dyn StableMemory>>,
        superblock: &Superblock,
        (settings, rules): (&Settings, &ModeRules),
        key: &OpeningKey,
        is_void: bool,
    ) -> Result<Self, CacheOpenError> {
        // Acknowledged data can be in the NVRAM alone only after an opening with immediate report that did not
        // end cleanly.
        let needed = superblock.immediate && !superblock.clean && !settings.accept_loss && !is_void;
        let Some(memory) = memory else { return Self::none(rules, needed) };
        let (buffer, contents) = NvramBuffer::open(memory, superblock.instance, key.sealing());
        check_readable(&buffer)?;
        let contents = usable(contents, &buffer, is_void, key);
        let found = Self::judge(buffer, contents, superblock, (settings, rules), needed)?;
        check_held(&found.held, superblock, settings)?;
        Ok(found)
    }

    /// Returns the result for a cache that is opened without an NVRAM.
    fn none(rules: &ModeRules, needed: bool) -> Result<Self, CacheOpenError> {
        if rules.keeps_in_nvram {
            return Err(CacheOpenError::Settings("immediate report needs an NVRAM".into()));
        }
        if needed {
            return missing("is not configured");
        }
        Ok(Self {
            buffer: None,
            mark: 0,
            held: Vec::new(),
            watermark: None,
            noted: None,
            change: NvramChange::default(),
        })
    }

    /// Decides whether an NVRAM with these contents belongs to the log, and which of its slots are needed.
    /// `needed` means that acknowledged writes may be in the log's NVRAM alone.
    fn judge(
        buffer: NvramBuffer,
        contents: NvramContents,
        superblock: &Superblock,
        (settings, rules): (&Settings, &ModeRules),
        needed: bool,
    ) -> Result<Self, CacheOpenError> {
        let instance = superblock.instance;
        let mut change = NvramChange::default();
        let (mark, held, watermark, noted) = match contents {
            NvramContents::Ours { mark, .. } if mark != superblock.nvram && needed => {
                return missing("was discarded when the log was opened without it");
            }
            NvramContents::Ours { mark, held, watermark, begun }
                if mark == superblock.nvram && superblock.immediate && !superblock.clean =>
            {
                (mark, held, Some(watermark), Some(watermark.max(begun)))
            }
            // The log has every acknowledged write, so the NVRAM's slots can be released.
            NvramContents::Ours { mark, held, watermark, .. } if mark == superblock.nvram => {
                change.released = held.iter().map(|held| held.index).collect();
                (mark, Vec::new(), Some(watermark), None)
            }
            NvramContents::Blank if needed => return missing("is blank"),
            NvramContents::DamagedSlots(how) if needed => {
                return missing(&format!("is damaged ({how})"));
            }
            NvramContents::Damaged(how) if !settings.accept_loss => {
                return missing(&format!("is damaged ({how})"));
            }
            NvramContents::Other { instance: found, held } if held > 0 && !settings.accept_loss => {
                return Err(CacheOpenError::OtherNvram { found, expected: instance, held });
            }
            NvramContents::Other { .. } if needed => return missing("is of another log"),
            NvramContents::Version(found) => {
                let supported = journal::VERSION;
                return Err(CacheOpenError::Version { what: "NVRAM", found, supported });
            }
            // Format the NVRAM. Slots of this log, damaged or whole, are not needed: the log has every
            // acknowledged write.
            NvramContents::Ours { .. }
            | NvramContents::Blank
            | NvramContents::Damaged(_)
            | NvramContents::DamagedSlots(_)
            | NvramContents::Other { .. } => {
                let [a, b, c, d, ..] = random(&superblock.identity.name);
                change.formats = true;
                (u32::from_le_bytes([a, b, c, d]).max(1), Vec::new(), None, None)
            }
        };
        check_readable(&buffer)?;
        let slots = if change.formats { buffer.most_slots() } else { buffer.slots() };
        if rules.keeps_in_nvram && slots < LEAST_NVRAM_SLOTS {
            return Err(CacheOpenError::Settings(format!(
                "the NVRAM has {slots} slots, immediate report needs at least {LEAST_NVRAM_SLOTS}"
            )));
        }
        Ok(Self { buffer: Some(buffer), mark, held, watermark, noted, change })
    }

    /// Fails if the log shows that this NVRAM is an older copy, which lacks acknowledged writes.
    pub fn check_noted(&self, superblock: &Superblock, found: &Scan) -> Result<(), CacheOpenError> {
        match self.noted {
            Some(noted) => older::check_nvram(superblock, found, noted),
            None => Ok(()),
        }
    }

    /// Applies `change` to the NVRAM, and updates the superblock accordingly. Returns true if the superblock
    /// has changed.
    pub fn take_into_use(
        &mut self,
        superblock: &mut Superblock,
        (settings, rules): (&Settings, &ModeRules),
        boot: Option<[u8; 16]>,
    ) -> Result<bool, CacheOpenError> {
        let is_immediate = rules.keeps_in_nvram;
        let mut noted = false;
        if let Some(buffer) = &mut self.buffer {
            if self.change.formats {
                buffer.format(superblock.instance, self.mark);
            } else {
                buffer.mend();
                self.change.released.iter().for_each(|index| buffer.release(*index));
                if self.change.clears_data {
                    buffer.clear_data();
                }
            }
            check_readable(buffer)?;
            // Every segment up to `committed` is stable, so recovery after a crash may rely on this number.
            // Record it twice, once in each cell: either cell may still hold a higher number that is no longer
            // valid.
            buffer.note_begun(superblock.committed);
            buffer.note_begun(superblock.committed);
            noted = is_immediate && buffer.is_sound();
        }
        // Do not bind writes that were acknowledged as surviving a power failure to this boot: a start after
        // a reboot would discard them.
        let keeps_boot = !self.held.is_empty() && superblock.boot.is_none();
        let key = settings.log_key.as_ref().map(|key| key.check(&superblock.instance.0));
        let next = Superblock {
            // The key is set only now: the NVRAM holds no more data in clear text or under another key.
            key,
            immediate: is_immediate || !self.held.is_empty(),
            boot: if keeps_boot { None } else { boot },
            noted,
            // The superblock names the mark of this NVRAM from now on: no other NVRAM is accepted for this log.
            nvram: self.mark,
            ..superblock.clone()
        };
        let is_new = next != *superblock;
        *superblock = next;
        Ok(is_new)
    }
}

fn missing<T>(what: &str) -> Result<T, CacheOpenError> {
    Err(CacheOpenError::NvramMissing(what.into()))
}

/// Returns the contents of an NVRAM as far as they may be used. An NVRAM that is void after a reboot counts as
/// blank. If the log's key does not open some slot, the NVRAM counts as damaged. If the settings have a wrong
/// key, no slot is opened: the opening is refused anyway as soon as a slot holds data.
fn usable(
    contents: NvramContents,
    buffer: &NvramBuffer,
    is_void: bool,
    key: &OpeningKey,
) -> NvramContents {
    let may_be_ours = matches!(
        contents,
        NvramContents::Ours { .. } | NvramContents::DamagedSlots(_) | NvramContents::Damaged(_)
    );
    if is_void && may_be_ours {
        return NvramContents::Blank;
    }
    if !key.is_wrong()
        && let NvramContents::Ours { held, .. } = &contents
        && let Some(slot) = not_opened(buffer, held)
    {
        return NvramContents::DamagedSlots(format!("its key does not open slot {slot}"));
    }
    contents
}

/// Fails if the writes in the NVRAM cannot belong to this volume, or do not fit into memory.
fn check_held(
    held: &[HeldNvramSlot],
    superblock: &Superblock,
    settings: &Settings,
) -> Result<(), CacheOpenError> {
    let slots = superblock.identity.geometry.bytes().div_ceil(SLOT_BYTES as u64);
    let wrong = held.iter().find(|held| {
        held.slot >= slots || held.mask == 0 || !(1..u64::MAX / 2).contains(&held.serial)
    });
    if let Some(wrong) = wrong {
        let how = format!("is damaged (it holds slot {} of {slots})", wrong.slot);
        return missing(&how);
    }
    if held.len() as u64 > settings.dram_bytes / SLOT_BYTES as u64 {
        return Err(CacheOpenError::Settings("dram_bytes is less than the NVRAM holds".into()));
    }
    Ok(())
}

/// Returns the first slot of the volume whose content in the NVRAM cannot be opened.
fn not_opened(buffer: &NvramBuffer, held: &[HeldNvramSlot]) -> Option<u64> {
    let mut page = [0; SLOT_BYTES];
    held.iter().find(|held| !buffer.read(**held, &mut page)).map(|held| held.slot)
}

/// Enters the writes that only the NVRAM holds into the slot table, and queues them for the log. Releases the
/// NVRAM slots of writes that the log has.
pub(super) fn replay(
    shared: &Arc<CacheCore>,
    held: Vec<HeldNvramSlot>,
    complete: u64,
) -> Result<(), CacheOpenError> {
    let mut state = shared.state.lock();
    let state = &mut *state;
    for held in held {
        let nvram = state.nvram.as_mut().expect("it holds what was found in it");
        let logged = state.table.find(held.slot).map_or(0, |i| state.table.entry(i).version);
        if held.serial <= complete || held.serial <= logged {
            nvram.release(held.index);
            continue;
        }
        let mut page = shared.pages.take().expect("it was checked that they fit");
        assert!(nvram.read(held, &mut page), "it was checked that it can be opened");
        check_readable(nvram)?;
        let checksum = crc32c(&page);
        let index = state.table.find_or_insert(held.slot);
        state.table.set_page(index, page.freeze(), held.mask, Came::Wanted);
        let entry = state.table.entry_mut(index);
        entry.checksum = checksum;
        let older = std::mem::replace(&mut entry.nvram, held.index);
        if older != NONE {
            nvram.release(older);
        }
        state.queue_slot(index, held.serial);
        // The write is not in the log yet, so it must not count as durable.
        state.commits.durable = state.commits.durable.min(held.serial - 1);
        shared.counters.recovery.nvram.add(1);
    }
    shared.start_commit(state);
    Ok(())
}

/// Refuses an NVRAM with a page that could not be read: such a page reads as zeros, which look like free slots.
fn check_readable(buffer: &NvramBuffer) -> Result<(), CacheOpenError> {
    buffer.error().map_or(Ok(()), |error| Err(CacheOpenError::Nvram(error.to_string())))
}

/// The minimum number of NVRAM slots for immediate report.
const LEAST_NVRAM_SLOTS: u32 = 8;
