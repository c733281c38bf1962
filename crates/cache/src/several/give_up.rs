//! Removes one of several volumes from a log although the log has dirty data for it, and permits such a
//! volume to become a member again. The log must not be open.
//!
//! Each change is one write of the superblock. The log's records do not change: records in the region of a
//! removed volume are void, and no other volume gets the region while there are any.

use std::collections::HashSet;

use journal::{
    members::{GivenUp, MemberRecord},
    recovery::{scan, superblock},
    superblock::Superblock,
};
use volume::Stack;

use crate::{
    core::write_copies,
    inspect::{check_size, no_superblock, note_dirty, pool},
    lower::extent::place_of,
    nvram::{NvramBuffer, NvramContents, StableMemory},
    refusal::CacheOpenError,
};

/// Returns the number of dirty slots (4096 bytes each) that a log, and its NVRAM if that is given, have for
/// one of several volumes.
///
/// # Errors
/// See [`CacheOpenError`]. Unless `accept_loss` is set: [`CacheOpenError::NvramMissing`] if the NVRAM may
/// have acknowledged writes and cannot be read, and [`CacheOpenError::Missing`] if acknowledged data is
/// missing from the log: it may belong to any of the volumes.
pub async fn dirty_of(
    log: &Stack,
    nvram: Option<Box<dyn StableMemory>>,
    member: &MemberRecord,
    accept_loss: bool,
) -> Result<u64, CacheOpenError> {
    let superblock = read(log).await?;
    let mut dirty = HashSet::new();
    let held = match held(nvram, &superblock) {
        Err(_) if accept_loss => Vec::new(),
        held => held?,
    };
    let note = |_, header: &_| note_dirty(&mut dirty, header);
    let found = scan(log, &superblock, None, note).await.map_err(CacheOpenError::Log)?;
    if let Some(loss) = found.loss.filter(|_| !accept_loss) {
        return Err(CacheOpenError::Missing(loss));
    }
    dirty.extend(held);
    Ok(dirty.iter().filter(|slot| place_of(**slot) == member.place).count() as u64)
}

/// Discards the dirty data of one volume in a log, which is `slots` slots, and removes the volume. The change
/// is stable when this returns.
///
/// # Errors
/// See [`CacheOpenError`]; [`CacheOpenError::Settings`] if the log has no such volume, or it was removed before.
pub async fn give_up(log: &Stack, member: &MemberRecord, slots: u64) -> Result<(), CacheOpenError> {
    change(log, |known| {
        let is_it = known.counts() && known.place == member.place && known.name == member.name;
        if is_it {
            // Keep `opening`: if the volume becomes a member again, it recognises this log by that number.
            known.granted = 0;
            known.given_up = Some(GivenUp { slots, may_return: false });
        }
        is_it
    })
    .await
}

/// Permits a volume that was removed with dirty data to become a member again. The change is stable when this
/// returns.
///
/// # Errors
/// See [`CacheOpenError`]; [`CacheOpenError::Settings`] if no such volume was removed.
pub async fn take_in(log: &Stack, name: &str) -> Result<(), CacheOpenError> {
    change(log, |known| match &mut known.given_up {
        Some(given_up) if known.name == name => {
            given_up.may_return = true;
            true
        }
        _ => false,
    })
    .await
}

async fn change(
    log: &Stack,
    mut change: impl FnMut(&mut MemberRecord) -> bool,
) -> Result<(), CacheOpenError> {
    let mut superblock = read(log).await?;
    let changed = superblock.members.iter_mut().filter_map(|member| change(member).then_some(()));
    if changed.count() == 0 {
        return Err(CacheOpenError::Settings("the log has no such volume".into()));
    }
    superblock.sequence += 1;
    write_copies(log, &pool(1)?, &superblock).await.map_err(CacheOpenError::Log)
}

async fn read(log: &Stack) -> Result<Superblock, CacheOpenError> {
    let superblock = superblock(log).await.map_err(no_superblock)?;
    check_size(log, &superblock)?;
    Ok(superblock)
}

/// Returns the slots of acknowledged writes that may be in the NVRAM alone.
fn held(
    memory: Option<Box<dyn StableMemory>>,
    superblock: &Superblock,
) -> Result<Vec<u64>, CacheOpenError> {
    if !superblock.immediate || superblock.clean {
        return Ok(Vec::new());
    }
    let missing = |what: &str| Err(CacheOpenError::NvramMissing(what.into()));
    let Some(memory) = memory else { return missing("is not configured, or not there") };
    match NvramBuffer::open(memory, superblock.instance, None).1 {
        NvramContents::Ours { mark, held, .. } if mark == superblock.nvram => {
            Ok(held.iter().map(|held| held.slot).collect())
        }
        NvramContents::Ours { .. } => missing("was discarded when the log was opened without it"),
        NvramContents::Blank => missing("is blank"),
        NvramContents::Damaged(how) | NvramContents::DamagedSlots(how) => {
            missing(&format!("is damaged ({how})"))
        }
        NvramContents::Other { .. } => missing("is of another log"),
        NvramContents::Version(found) => {
            let supported = journal::VERSION;
            Err(CacheOpenError::Version { what: "NVRAM", found, supported })
        }
    }
}
