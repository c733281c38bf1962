//! Reads the state of a log that is not open, and formats new logs.

use std::{collections::HashSet, sync::Arc};

use journal::{
    BLOCK_BYTES,
    identity::{InstanceId, LogVolumeIdentity},
    members::MemberRecord,
    recovery::{AcknowledgedLoss, NoSuperblock, Scan, scan, superblock},
    segment::{LogRecordKind, SegmentHeader},
    shape::{FIRST_BLOCK, index_shape, least_blocks, most_segment_slots},
    superblock::{MAX_NAME, Superblock},
};
use volume::Stack;

use crate::{
    core::write_copies, lower::extent::place_of, random::random, refusal::CacheOpenError,
    settings::Settings, slots::pages::SlotPagePool,
};

/// The properties and the content of a log that is not open.
#[derive(Clone, Debug)]
pub struct LogInfo {
    /// The name and geometry of the volume to which the log belongs, as its superblock has them.
    pub identity: LogVolumeIdentity,
    /// The volumes that share this log; empty if the log serves one volume.
    pub members: Vec<MemberRecord>,
    pub instance: InstanceId,
    /// The number of times that the log was opened.
    pub generation: u64,
    pub clean: bool,
    /// True if the data blocks in the log are encrypted.
    pub encrypted: bool,
    /// Size of the log in blocks of 4096 bytes, superblocks included.
    pub log_blocks: u64,
    /// Number of blocks in use, including blocks that no segment can use because too few are left at the end of a zone.
    pub used_blocks: u64,
    pub segments: u64,
    pub newest_segment: u64,
    /// Number of dirty slots (4096 bytes each), whose data the lower volume does not have yet.
    pub dirty_slots: u64,
    /// Number of dirty slots of each member; 0 for a member that was removed with dirty data.
    pub dirty_of_members: Vec<u64>,
    /// Set if acknowledged data is missing.
    pub loss: Option<AcknowledgedLoss>,
    /// The log holds every write with a serial up to this one.
    pub complete: u64,
    /// The serial of the newest write.
    pub newest: u64,
}

/// Formats a log for a volume. If the disk has a log with dirty data, or something that is not a log, this
/// fails unless `force` is set.
pub async fn format(
    log: &Stack,
    identity: &LogVolumeIdentity,
    force: bool,
) -> Result<(), CacheOpenError> {
    let settings = Settings::default();
    if !force {
        match inspect(log).await {
            Ok(info) if info.dirty_slots > 0 || info.loss.is_some() => {
                return Err(CacheOpenError::Dirty {
                    instance: info.instance,
                    name: info.identity.name,
                    slots: info.dirty_slots,
                });
            }
            Ok(_) | Err(InspectError::Blank) => {}
            Err(InspectError::Open(error)) => return Err(error),
        }
    }
    write_new(log, identity, &settings).await.map(drop)
}

/// The reason why a log could not be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The log disk is all zeros.
    #[error("the log disk is blank: it was never used")]
    Blank,
    /// The superblock or a segment of the log cannot be read.
    #[error(transparent)]
    Open(#[from] CacheOpenError),
}

/// Reads the state of a log for an operator, without changing the log.
pub async fn inspect(log: &Stack) -> Result<LogInfo, InspectError> {
    let superblock = match superblock(log).await {
        Ok(superblock) => superblock,
        Err(NoSuperblock::Blank) => return Err(InspectError::Blank),
        Err(error) => return Err(no_superblock(error).into()),
    };
    check_size(log, &superblock)?;
    let mut dirty = HashSet::new();
    let scan = scan(log, &superblock, None, |_, header| note_dirty(&mut dirty, header));
    let scan = scan.await.map_err(CacheOpenError::Log)?;
    let members = &superblock.members;
    let is_void = |slot: &u64| {
        members.iter().any(|member| member.place == place_of(*slot) && !member.counts())
    };
    if !members.is_empty() {
        dirty.retain(|slot| !is_void(slot));
    }
    let count = |member: &MemberRecord| {
        dirty.iter().filter(|slot| place_of(**slot) == member.place).count() as u64
    };
    let dirty_of_members = members.iter().map(count).collect();
    Ok(LogInfo {
        instance: superblock.instance,
        generation: superblock.generation,
        clean: superblock.clean,
        encrypted: superblock.key.is_some(),
        log_blocks: superblock.log_blocks,
        used_blocks: u64::from(scan.ring.used()),
        segments: scan.ring.segments() as u64,
        newest_segment: scan.ring.next() - 1,
        dirty_slots: dirty.len() as u64,
        dirty_of_members,
        complete: complete(&superblock, &scan),
        newest: scan.serial,
        loss: scan.loss,
        identity: superblock.identity,
        members: superblock.members,
    })
}

/// Returns the serial up to which a log has every write. If the superblock does not store it, returns the
/// serial of the newest write.
pub(crate) fn complete(superblock: &Superblock, found: &Scan) -> u64 {
    if superblock.complete == 0 { found.serial } else { found.complete }
}

/// Adds the slots that a segment has content of to `dirty`, and removes the slots that it voids.
pub(crate) fn note_dirty(dirty: &mut HashSet<u64>, header: &SegmentHeader) {
    for record in &header.records {
        let slots = record.slot..record.slot + u64::from(record.count);
        match record.kind {
            LogRecordKind::Data | LogRecordKind::Zero => dirty.extend(slots),
            LogRecordKind::Dropped if u64::from(record.count) > dirty.len() as u64 => {
                dirty.retain(|slot| !slots.contains(slot));
            }
            LogRecordKind::Dropped => slots.for_each(|slot| {
                dirty.remove(&slot);
            }),
        }
    }
}

/// Writes the superblocks of a new log. The rest of the disk need not be cleared: no record there carries the
/// id of this log.
pub(crate) async fn write_new(
    log: &Stack,
    identity: &LogVolumeIdentity,
    settings: &Settings,
) -> Result<Superblock, CacheOpenError> {
    if identity.name.len() > MAX_NAME {
        let message = format!("the name of the volume is longer than {MAX_NAME} bytes");
        return Err(CacheOpenError::Settings(message));
    }
    let geometry = log.geometry();
    let segment_slots = settings.segment_slots.min(most_segment_slots(settings.log_key.is_some()));
    let least = least_blocks(segment_slots);
    if geometry.block_size as usize != BLOCK_BYTES {
        let message = format!("its blocks have {} bytes, not 4096", geometry.block_size);
        return Err(CacheOpenError::Size(message));
    }
    if geometry.blocks < least {
        let message =
            format!("it has {} blocks of 4096 bytes, {least} are needed", geometry.blocks);
        return Err(CacheOpenError::Size(message));
    }
    let log_blocks = geometry.blocks.min(u64::from(u32::MAX / 2));
    let (frame_blocks, index_blocks) = index_shape(log_blocks, segment_slots);
    let instance = InstanceId(random(&identity.name));
    let superblock = Superblock {
        sequence: 1,
        instance,
        identity: identity.clone(),
        log_blocks,
        segment_slots,
        generation: 1,
        generation_first: 1,
        tail: 1,
        tail_block: FIRST_BLOCK,
        committed: 0,
        serial: 0,
        complete: 0,
        clean: true,
        immediate: false,
        nvram: 0,
        noted: false,
        boot: None,
        index_blocks,
        frame_blocks,
        index_tail: 0,
        index_first: 0,
        granted: 0,
        openings: Default::default(),
        layouts: Vec::new(),
        members: Vec::new(),
        key: settings.log_key.as_ref().map(|key| key.check(&instance.0)),
    };
    write_copies(log, &pool(1)?, &superblock).await.map_err(CacheOpenError::Log)?;
    Ok(superblock)
}

pub(crate) fn check_size(log: &Stack, superblock: &Superblock) -> Result<(), CacheOpenError> {
    let geometry = log.geometry();
    if geometry.block_size as usize != BLOCK_BYTES {
        let message = format!("its blocks have {} bytes, not 4096", geometry.block_size);
        return Err(CacheOpenError::Size(message));
    }
    if geometry.blocks < superblock.log_blocks {
        return Err(CacheOpenError::Truncated {
            recorded: superblock.log_blocks,
            found: geometry.blocks,
        });
    }
    Ok(())
}

pub(crate) fn no_superblock(error: NoSuperblock) -> CacheOpenError {
    match error {
        NoSuperblock::Blank | NoSuperblock::Garbage => CacheOpenError::NotALog,
        NoSuperblock::Version(found) => {
            CacheOpenError::Version { what: "log", found, supported: journal::VERSION }
        }
        NoSuperblock::Io(error) => CacheOpenError::Log(error),
    }
}

/// Allocates a pool of `pages` pages of 4096 bytes.
pub(crate) fn pool(pages: u32) -> Result<Arc<SlotPagePool>, CacheOpenError> {
    SlotPagePool::new(pages)
        .map_err(|error| CacheOpenError::Settings(format!("no memory for {pages} pages: {error}")))
}
