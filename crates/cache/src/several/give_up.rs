//! Giving up what a log has of one of several volumes, which will never take it; and letting that volume be one
//! of them again. The log is not open meanwhile.
//!
//! One state of the superblock says it. The log's records stay as they are: what is of a place that was
//! given up counts for nothing, and nobody gets that place while there is any.

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

/// What a log, and its NVRAM if that is given, have of one of several volumes that it lacks, in slots of 4096
/// bytes.
///
/// # Errors
/// See [`CacheOpenError`]. Unless `accept_loss`: [`CacheOpenError::NvramMissing`] if the NVRAM may have acknowledged writes and
/// cannot be asked, [`CacheOpenError::Missing`] if some are missing from the log: it is not known then whose those are.
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

/// Gives up what a log has of one of its volumes, which is `slots`; stable when it returns.
///
/// # Errors
/// See [`CacheOpenError`]; [`CacheOpenError::Settings`] if it is none of its volumes, or was given up before.
pub async fn give_up(log: &Stack, member: &MemberRecord, slots: u64) -> Result<(), CacheOpenError> {
    change(log, |known| {
        let is_it = known.counts() && known.place == member.place && known.name == member.name;
        if is_it {
            // Its opening stays: if the volume is taken in anew, this log is known there by that.
            known.granted = 0;
            known.given_up = Some(GivenUp { slots, may_return: false });
        }
        is_it
    })
    .await
}

/// Lets a volume that was given up be one of the log's volumes again, as it is; stable when it returns.
///
/// # Errors
/// See [`CacheOpenError`]; [`CacheOpenError::Settings`] if it was not given up.
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
        return Err(CacheOpenError::Settings("the log knows no such volume".into()));
    }
    superblock.sequence += 1;
    write_copies(log, &pool(1)?, &superblock).await.map_err(CacheOpenError::Log)
}

async fn read(log: &Stack) -> Result<Superblock, CacheOpenError> {
    let superblock = superblock(log).await.map_err(no_superblock)?;
    check_size(log, &superblock)?;
    Ok(superblock)
}

/// The slots of acknowledged writes that may be in the NVRAM alone.
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
        NvramContents::Ours { .. } => missing("was given up when the log was opened without it"),
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
