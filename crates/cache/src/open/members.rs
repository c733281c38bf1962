//! Several volumes in one log: which of them the log is for, and what becomes of the data of the others.

use journal::{members::MemberRecord, superblock::Superblock};

use crate::{
    lower::extent::{DirtyFlags, JoinedMembers, place_of},
    nvram::HeldNvramSlot,
    open::nvram::FoundNvram,
    refusal::CacheOpenError,
    slots::table::SlotTable,
};

/// Notes in the superblock which volumes the log is for from now on. Returns the flags of the volumes of which the log
/// has dirty data.
///
/// # Errors
/// The log has dirty data of a volume that is not there and was not given up.
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
            // The log would take writes of the new volume at that place for void ones of the old volume.
            true if is_needed => return Err(no_place(&record)),
            true => kept.push(record),
            false if is_back => {}
            false if is_needed => tracing::warn!(
                volume = %record.name,
                "its place is needed: from now on the log does not know any more that it was given up"
            ),
            false => kept.push(record),
        }
    }
    superblock.members = records.iter().cloned().chain(kept).collect();
    let flags = DirtyFlags::of_several(&joining.joined);
    dirty.iter().for_each(|slot| flags.set(*slot));
    Ok(flags)
}

/// Removes what the table and the NVRAM have of volumes that were given up. Returns these volumes, each with
/// true if there was anything of it. The superblock has said since before this opening that they were given
/// up.
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
        "they are too many while the log has something in it of volume \"{}\", which was given up",
        record.name
    ))
}
