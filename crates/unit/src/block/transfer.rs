//! Commands that read, write, verify or flush blocks: checks of their parameters, and the calls on the
//! volume.

use std::future::Future;

use scsi::{BlockTransfer, ByteCheck, ScsiStatus, Sense};
use volume::{Data, Durability, Extent, Geometry, Lba};

use super::{
    BlockCommandInput, BlockUnit,
    bounds::{in_range, one_block, too_long, whole_blocks, writable},
};
use crate::{
    Completion, Nexus, UnitReply,
    block::{
        access::{self, Against, ReadVersion},
        ownership::Ownership,
    },
    primary::reply::{at_once, finished, taking, taking_with},
    sense::UnitCommandFailure,
};

/// A read by an initiator that is not the claim's owner, of a volume that has one version of each block.
struct NonOwnerRead<'a> {
    ownership: &'a Ownership,
    changes: u64,
}

impl NonOwnerRead<'_> {
    /// Fails if the blocks that were read may be of two epochs.
    fn end(&self) -> Result<(), UnitCommandFailure> {
        self.ownership.end_read(self.changes)
    }
}

impl BlockUnit {
    /// READ. Reads only the blocks that the initiator has `room` for, and reports the full length. The room
    /// may be zero, and data beyond it would be held in memory for no use.
    pub(super) fn read<'a>(
        &'a self,
        transfer: BlockTransfer,
        room: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let Some(extent) = self.extent(&transfer, &work.geometry)? else {
            return Err(Completion::good(Data::new()));
        };
        let blocks = extent.blocks.min(room.div_ceil(work.geometry.block_size));
        let whole = extent.blocks * work.geometry.block_size;
        if blocks == 0 {
            return Err(taking(whole));
        }
        let has_cache = work.geometry.volatile_cache && !work.geometry.read_only;
        let version = match self.version_for(work.nexus, &work.geometry) {
            // Flush for FUA only if this nexus reads the newest version. Otherwise the flush would end the epoch of
            // another nexus in the middle.
            ReadVersion::Newest if transfer.fua && has_cache => ReadVersion::Stable,
            version => version,
        };
        let part = Extent { blocks, ..extent };
        let beside = self.begin_read_beside(work.nexus, &work.geometry)?;
        let read = access::read(&*self.volume, part, version, work.turn);
        let read: UnitReply<'a> = match beside {
            Some(beside) => UnitReply::new(async move {
                let read = read.await;
                match beside.end() {
                    Err(failure) if read.status == ScsiStatus::Good => failure.into(),
                    _ => read,
                }
            }),
            None => read,
        };
        if blocks == extent.blocks {
            return Ok(read);
        }
        Ok(UnitReply::new(async move {
            match read.await {
                read if read.status == ScsiStatus::Good => {
                    Completion { data_out_length: Some(whole), ..read }
                }
                failed => failed,
            }
        }))
    }

    pub(super) fn write<'a>(
        &'a self,
        transfer: BlockTransfer,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let (extent, data) = self.to_write(&transfer, work.data, &work.geometry)?;
        let taken = extent.blocks * work.geometry.block_size;
        let durability = self.durability(transfer.fua, &work.geometry);
        self.watch_space(u64::from(taken), &work.geometry);
        let (volume, turn, nexus) = (&*self.volume, work.turn, work.nexus);
        if let Some(claim) = self.claim_now(extent, &work.geometry) {
            self.check_token(nexus, extent).map_err(|failure| taking_with(taken, failure))?;
            let held = (turn, claim);
            return Ok(access::write(volume, extent.lba, data, durability, taken, held));
        }
        Ok(UnitReply::new(async move {
            let held = (turn, self.claim(extent, &work.geometry).await);
            if let Err(failure) = self.check_token(nexus, extent) {
                return taking_with(taken, failure);
            }
            access::write(volume, extent.lba, data, durability, taken, held).await
        }))
    }

    /// Returns [`Durability::Stable`] for a write with FUA, and for any write while the write cache is turned off
    /// (WCE=0). A WCE of 0 that was saved before the unit had epochs has no effect while the unit is claimed: it would
    /// make each write of the owner an epoch of its own.
    pub(super) fn durability(&self, fua: bool, geometry: &Geometry) -> Durability {
        let is_claimed = || self.writers.ownership.as_ref().is_some_and(Ownership::is_held);
        let is_off = self.primary.modes.current().write_through;
        if fua || is_off && !(geometry.epoch_blocks > 0 && is_claimed()) {
            Durability::Stable
        } else {
            Durability::Volatile
        }
    }

    /// Counts `bytes` that are about to be written. From time to time, checks whether the soft threshold has
    /// been crossed.
    pub(super) fn watch_space(&self, bytes: u64, geometry: &Geometry) {
        if self.threshold.is_due(bytes)
            && self.space(geometry).is_some_and(|space| self.threshold.crosses(&space))
        {
            self.primary.raise(Sense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED, None);
        }
    }

    pub(super) fn write_and_verify<'a>(
        &'a self,
        transfer: BlockTransfer,
        byte_check: ByteCheck,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let (extent, data) = self.to_write(&transfer, work.data, &work.geometry)?;
        let taken = extent.blocks * work.geometry.block_size;
        let compare = byte_check == ByteCheck::Data;
        let write = async move {
            let _claim = self.claim(extent, &work.geometry).await;
            access::write_and_verify(&*self.volume, extent.lba, data, compare).await
        };
        Ok(finished(write, taken, work.turn))
    }

    /// Returns the extent and the data of a write, or the completion if there is nothing to write.
    pub(super) fn to_write(
        &self,
        transfer: &BlockTransfer,
        data: Data,
        geometry: &Geometry,
    ) -> Result<(Extent, Data), Completion> {
        writable(geometry)?;
        let extent = self.extent(transfer, geometry)?.ok_or_else(|| taking(0))?;
        let taken = extent.blocks * geometry.block_size;
        match whole_blocks(data, taken, geometry) {
            Ok(data) if data.is_empty() => Err(taking(taken)),
            Ok(data) => Ok((extent, data)),
            Err(sense) => Err(taking_with(taken, sense.into())),
        }
    }

    pub(super) fn verify<'a>(
        &'a self,
        transfer: BlockTransfer,
        byte_check: ByteCheck,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, nexus } = work;
        let Some(extent) = self.extent(&transfer, &geometry)? else {
            return Err(taking(0));
        };
        let version = self.version_for(nexus, &geometry);
        let (taken, against) = match byte_check {
            // VERIFY without a byte check takes no data: ignore any that the initiator sends.
            ByteCheck::Medium => (0, Ok(Against::Nothing)),
            ByteCheck::Data => {
                let taken = extent.blocks * geometry.block_size;
                (taken, whole_blocks(data, taken, &geometry).map(Against::Data))
            }
            ByteCheck::Block => {
                (geometry.block_size, one_block(data, &geometry).map(Against::Block))
            }
        };
        Ok(match against {
            Ok(against) => {
                let beside = self.begin_read_beside(nexus, &geometry);
                let beside = beside.map_err(|failure| taking_with(taken, failure))?;
                let verify = async move {
                    let verified = access::verify(&*self.volume, extent, against, version).await;
                    // Check this before the result of the comparison: if the blocks are of two epochs, a difference is
                    // no miscompare.
                    beside.map_or(Ok(()), |beside| beside.end())?;
                    verified
                };
                finished(verify, taken, turn)
            }
            Err(sense) => at_once(taking_with(taken, sense.into())),
        })
    }

    /// Begins a read while another nexus has claimed the unit. Returns `None` if no such check is needed, because the
    /// read cannot return half an epoch.
    fn begin_read_beside(
        &self,
        nexus: u64,
        geometry: &Geometry,
    ) -> Result<Option<NonOwnerRead<'_>>, UnitCommandFailure> {
        let Some(ownership) = &self.writers.ownership else { return Ok(None) };
        if geometry.epoch_blocks > 0 || !ownership.is_beside_dirty(nexus) {
            return Ok(None);
        }
        Ok(Some(NonOwnerRead { ownership, changes: ownership.begin_read()? }))
    }

    /// SYNCHRONIZE CACHE: makes all earlier writes stable, whichever blocks are named, since a volume flushes
    /// only as a whole. With IMMED, too, the status is sent after the flush, as the standard permits.
    pub(super) fn synchronize_cache<'a>(
        &'a self,
        nexus: &Nexus,
        transfer: BlockTransfer,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        in_range(transfer.lba, u64::from(transfer.blocks), &work.geometry)?;
        if self.is_anothers_epoch(nexus.number, &work.geometry) {
            return Err(taking(0));
        }
        Ok(finished(self.flush_as(nexus.number), 0, work.turn))
    }

    /// Makes earlier writes stable. A flush by the exclusive writer (claim owner) also ends its epoch.
    pub(super) fn flush_as(
        &self,
        nexus: u64,
    ) -> impl Future<Output = Result<(), UnitCommandFailure>> + Send + '_ {
        let noted =
            self.writers.ownership.as_ref().map(|ownership| (ownership, ownership.changes()));
        let flush = self.volume.flush();
        async move {
            flush.await.map_err(access::failed_flush)?;
            if let Some((ownership, changes)) = noted {
                ownership.note_flush(nexus, changes);
            }
            Ok(())
        }
    }

    /// Returns true if the open epoch belongs to a claim of another nexus, so that a flush would end it in
    /// the middle. Writes of this nexus are stable: they were flushed before the claim was granted.
    pub(super) fn is_anothers_epoch(&self, nexus: u64, geometry: &Geometry) -> bool {
        geometry.epoch_blocks > 0 && self.has_another_owner(nexus)
    }

    /// Returns true if a nexus other than `nexus` is the exclusive writer of the unit.
    pub(super) fn has_another_owner(&self, nexus: u64) -> bool {
        self.writers.ownership.as_ref().is_some_and(|ownership| ownership.is_beside(nexus))
    }

    /// Returns the version of the blocks that this nexus reads. Half an epoch of another nexus is no consistent
    /// prefix of the writes of its hosts.
    fn version_for(&self, nexus: u64, geometry: &Geometry) -> ReadVersion {
        match self.is_anothers_epoch(nexus, geometry) {
            true => ReadVersion::Flushed,
            false => ReadVersion::Newest,
        }
    }

    /// ROLL BACK: discards the writes since the last flush. First waits for all writes that have begun:
    /// otherwise the first part of a running write would be discarded and the rest would not.
    pub(super) fn roll_back<'a>(
        &'a self,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        if work.geometry.epoch_blocks == 0 {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE.into());
        }
        let turn = work.turn;
        Ok(UnitReply::new(async move {
            drop(turn);
            let _nothing_else = self.when_all_has_ended().await;
            match self.volume.extensions().roll_back().await {
                Ok(()) => taking(0),
                Err(error) => taking_with(0, access::failed_flush(error)),
            }
        }))
    }

    /// Returns the range of blocks of a read or write command; `None` if its length is zero.
    pub(super) fn extent(
        &self,
        transfer: &BlockTransfer,
        geometry: &Geometry,
    ) -> Result<Option<Extent>, Sense> {
        in_range(transfer.lba, u64::from(transfer.blocks), geometry)?;
        if transfer.blocks == 0 {
            return Ok(None);
        }
        // Compare in bytes first: this saves the division in `limits` for every READ and WRITE.
        let bytes = u64::from(transfer.blocks) * u64::from(geometry.block_size);
        if bytes > u64::from(self.settings.maximum_transfer_bytes)
            && transfer.blocks > self.limits(geometry).maximum_blocks
        {
            return Err(too_long(transfer.form));
        }
        Ok(Some(Extent { lba: Lba(transfer.lba), blocks: transfer.blocks }))
    }
}
