//! Several volumes in one log: matches the recorded volumes with those of the settings, and discards the data
//! of volumes that were removed.

use journal::{members::MemberRecord, superblock::Superblock};

use crate::{
    lower::extent::{DirtyFlags, JoinedMembers, place_of},
    nvram::HeldNvramSlot,
    open::nvram::FoundNvram,
    refusal::CacheOpenError,
    slots::table::SlotTable,
};

/// Sets the volumes of the log in the superblock. Returns the flags of the volumes of which the log has dirty
/// data.
///
/// # Errors
/// The log has dirty data of a volume that is missing and was not removed with its dirty data; or of blocks
/// behind the end of a volume; or there are too many volumes.
pub(super) fn match_up(
    joining: &JoinedMembers,
    superblock: &mut Superblock,
    table: &mut SlotTable,
    nvram: &mut FoundNvram,
) -> Result<DirtyFlags, CacheOpenError> {
    let given_up = forget_given_up(&superblock.members, table, nvram);
    let mut dirty: Vec<u64> = nvram.held.iter().map(|held| held.slot).collect();
    table.rewind();
    while let Some(index) = table.next_dirty() {
        dirty.push(table.entry(index).slot);
    }
    dirty.sort_unstable();
    dirty.dedup();
    if let Some((name, slots)) = joining.absent(&superblock.members, &dirty) {
        return Err(CacheOpenError::Absent { name, slots });
    }
    if let Some((name, slots)) = joining.beyond(&dirty) {
        return Err(CacheOpenError::Beyond { name, slots });
    }
    let records = &joining.records;
    let mut kept = Vec::new();
    for (record, is_in_log) in given_up {
        let is_needed = records.iter().any(|other| other.place == record.place);
        let is_back = records.iter().any(|other| other.name == record.name);
        match is_in_log {
            // Refuse: recovery could not tell the new member's slots in this region from the discarded ones
            // of the old member.
            true if is_needed => return Err(no_place(&record)),
            true => kept.push(record),
            false if is_back => {}
            false if is_needed => tracing::warn!(
                volume = %record.name,
                remedy = "do not serve this volume with the common cache again before you have checked \
                 its content: it lacks the discarded writes",
                "its region is used for another volume: the log no longer records that this one was \
                 removed with dirty data"
            ),
            false => kept.push(record),
        }
    }
    superblock.members = records.iter().cloned().chain(kept).collect();
    let flags = DirtyFlags::of_several(&joining.joined);
    dirty.iter().for_each(|slot| flags.set(*slot));
    Ok(flags)
}

/// Removes the data of volumes that were removed with dirty data from the table and from the NVRAM. Returns
/// these volumes, each with true if there was such data. The superblock has recorded the removal before this
/// opening, so the data is void already.
fn forget_given_up(
    members: &[MemberRecord],
    table: &mut SlotTable,
    nvram: &mut FoundNvram,
) -> Vec<(MemberRecord, bool)> {
    let given_up = members.iter().filter(|member| !member.counts()).cloned();
    let mut given_up: Vec<_> = given_up.map(|member| (member, false)).collect();
    let mut is_void = |slot: u64| {
        let its = given_up.iter_mut().find(|(member, _)| member.place == place_of(slot));
        its.map(|(_, is_in_log)| *is_in_log = true).is_some()
    };
    let mut void = Vec::new();
    table.rewind();
    while let Some(index) = table.next_dirty() {
        if is_void(table.entry(index).slot) {
            void.push(index);
        }
    }
    for index in void {
        table.clear_place(index);
        table.entry_mut(index).zero = false;
        table.remove_if_empty(index);
    }
    let (void, held) = nvram.held.drain(..).partition(|held| is_void(held.slot));
    nvram.held = held;
    nvram.change.released.extend(void.iter().map(|held: &HeldNvramSlot| held.index));
    given_up
}

fn no_place(record: &MemberRecord) -> CacheOpenError {
    CacheOpenError::Settings(format!(
        "there are too many volumes while the log has data of volume \"{}\", which was removed",
        record.name
    ))
}
