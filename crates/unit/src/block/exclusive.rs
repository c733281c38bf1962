//! Commands that write atomically: COMPARE AND WRITE and ORWRITE depend on the blocks that they read, WRITE
//! ATOMIC is done completely or not at all.

use bytes::BytesMut;
use scsi::{BlockTransfer, Sense};
use volume::{Data, Extent, Geometry};

use super::{
    BlockCommandInput, BlockUnit,
    bounds::{too_long, writable},
};
use crate::{
    Completion, UnitReply,
    block::{
        access::{self, first_difference, pieces},
        patience::StepRetryWait,
    },
    primary::reply::{finished, taking, taking_with},
    sense::{FailedAccessKind, UnitCommandFailure},
};

impl BlockUnit {
    /// Reads, compares and writes the blocks while all other writes to them are locked out.
    pub(super) fn compare_and_write<'a>(
        &'a self,
        transfer: BlockTransfer,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, .. } = work;
        let extent = self.check_compare_and_write(&transfer, &geometry)?;
        let Some(extent) = extent else {
            // No extent means a length of zero. Refuse data all the same: the length field has one byte, so an
            // initiator that wants to write 256 blocks sends zero.
            if data.is_empty() {
                return Err(taking(0));
            }
            return Err(taking_with(0, Sense::invalid_field_in_cdb(13).into()));
        };
        let half = extent.blocks * geometry.block_size;
        if data.len() != 2 * half as usize {
            let sense = Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
            return Err(taking_with(2 * half, sense.into()));
        }
        let expected = data.slice(0, half as usize);
        let new = data.slice(half as usize, half as usize);
        let (volume, durability) = (&*self.volume, self.durability(transfer.fua, &geometry));
        let exchange = async move {
            let _claim = self.claim_alone(extent, &geometry).await;
            let found = volume
                .read(extent)
                .await
                .map_err(|e| UnitCommandFailure::new(&e, FailedAccessKind::Read))?;
            if let Some(offset) = first_difference(&expected, &found) {
                // INFORMATION has the offset of the first byte that differs (SBC-3, 5.2.1).
                return Err(Sense::MISCOMPARE_DURING_VERIFY.with_information(offset as u64).into());
            }
            // Do not repeat a write that may have been done: the initiator has to read the blocks first.
            volume.write(extent.lba, new, durability).await.map_err(access::failed_write)
        };
        Ok(finished(exchange, 2 * half, turn))
    }

    pub(super) fn check_compare_and_write(
        &self,
        transfer: &BlockTransfer,
        geometry: &Geometry,
    ) -> Result<Option<Extent>, Sense> {
        writable(geometry)?;
        self.extent(transfer, geometry)
    }

    /// Sets the bits that are set in the data, a piece at a time, while all other writes to these blocks are
    /// locked out.
    pub(super) fn or_write<'a>(
        &'a self,
        transfer: BlockTransfer,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { data, geometry, turn, .. } = work;
        let (extent, data) = self.to_write(&transfer, data, &geometry)?;
        let taken = extent.blocks * geometry.block_size;
        let block_size = geometry.block_size as usize;
        let extent = Extent { blocks: (data.len() / block_size) as u32, ..extent };
        let (volume, durability) = (&*self.volume, self.durability(transfer.fua, &geometry));
        let or = async move {
            let _claim = self.claim_alone(extent, &geometry).await;
            let mut patience = StepRetryWait::default();
            for piece in pieces(extent, block_size) {
                let at = (piece.lba.0 - extent.lba.0) as usize * block_size;
                let step = || async {
                    let found = volume.read(piece).await;
                    let found =
                        found.map_err(|e| UnitCommandFailure::new(&e, FailedAccessKind::Read))?;
                    let new = or(&found, &data.slice(at, found.len()));
                    volume.write(piece.lba, new, durability).await.map_err(access::failed_write)
                };
                patience.step(piece.lba.0, step).await?;
            }
            Ok(())
        };
        Ok(finished(or, taken, turn))
    }

    /// Writes in one call on a volume that promises to perform such a write completely or not at all.
    pub(super) fn write_atomic<'a>(
        &'a self,
        transfer: BlockTransfer,
        boundary: u16,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let extent = self.check_write_atomic(&transfer, boundary, &work.geometry)?;
        let Some(extent) = extent else { return Err(taking(0)) };
        let taken = extent.blocks * work.geometry.block_size;
        // Less data would make a partial write, which WRITE ATOMIC must exclude.
        if work.data.len() != taken as usize {
            let sense = Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
            return Err(taking_with(taken, sense.into()));
        }
        self.write(transfer, work)
    }

    pub(super) fn check_write_atomic(
        &self,
        transfer: &BlockTransfer,
        boundary: u16,
        geometry: &Geometry,
    ) -> Result<Option<Extent>, Sense> {
        let limits = self.limits(geometry);
        if limits.atomic_blocks == 0 {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        writable(geometry)?;
        let extent = self.extent(transfer, geometry)?;
        // MAXIMUM ATOMIC BOUNDARY SIZE is zero: the unit supports no boundaries.
        if boundary != 0 {
            return Err(Sense::invalid_field_in_cdb(10));
        }
        if transfer.blocks > limits.atomic_blocks {
            return Err(too_long(transfer.form));
        }
        if !transfer.lba.is_multiple_of(limits.atomic_granularity.into()) {
            return Err(Sense::invalid_field_in_cdb(2));
        }
        if !transfer.blocks.is_multiple_of(limits.atomic_granularity) {
            return Err(Sense::invalid_field_in_cdb(12));
        }
        Ok(extent)
    }
}

/// Returns the bitwise OR of two buffers of equal length (ORWRITE).
fn or(a: &Data, b: &Data) -> Data {
    let mut bytes = BytesMut::zeroed(a.len());
    a.copy_to_slice(&mut bytes);
    let others = b.parts().iter().flat_map(|part| part.iter());
    for (byte, other) in bytes.iter_mut().zip(others) {
        *byte |= other;
    }
    bytes.freeze().into()
}
