//! Commands about blocks that move no data: GET LBA STATUS and PRE-FETCH.

use bytes::Bytes;
use scsi::{BlockTransfer, LbaStatus, Sense, lba_status_list};
use volume::{Extent, Lba};

use super::{BlockCommandInput, BlockUnit, bounds::in_range};
use crate::{
    Completion, UnitReply,
    block::access::pieces,
    primary::reply::finished,
    sense::{FailedAccessKind, UnitCommandFailure},
};

impl BlockUnit {
    /// GET LBA STATUS: reports which blocks from `lba` on are mapped, as far as the volume answers in one
    /// call.
    pub(super) fn get_lba_status<'a>(
        &'a self,
        lba: u64,
        allocation_length: u32,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { geometry, turn, .. } = work;
        if lba >= geometry.blocks {
            return Err(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE.into());
        }
        let blocks = u32::try_from(geometry.blocks - lba).unwrap_or(u32::MAX);
        let asked = self.volume.extensions().allocation(Extent { lba: Lba(lba), blocks });
        Ok(UnitReply::new(async move {
            let _turn = turn;
            let allocation = match asked.await {
                Ok(allocation) => allocation,
                Err(error) => {
                    return UnitCommandFailure::new(&error, FailedAccessKind::Read).into();
                }
            };
            let descriptors = allocation.runs().iter().scan(lba, |lba, run| {
                let status = LbaStatus { lba: *lba, blocks: run.blocks, mapped: run.mapped };
                *lba += u64::from(run.blocks);
                Some(status)
            });
            let mut list = Bytes::from(lba_status_list(descriptors));
            list.truncate(allocation_length as usize);
            Completion::good(list.into())
        }))
    }

    /// PRE-FETCH: reads the blocks so that caches below hold them, but no more than one READ could ask for.
    /// The status GOOD does not promise that all blocks are in a cache (SBC-3, 5.10), so read errors are not
    /// reported. With IMMED nothing is done, since the status would not wait for it.
    pub(super) fn pre_fetch<'a>(
        &'a self,
        transfer: BlockTransfer,
        immediate: bool,
        work: BlockCommandInput<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        let BlockCommandInput { geometry, turn, .. } = work;
        in_range(transfer.lba, u64::from(transfer.blocks), &geometry)?;
        let rest = geometry.blocks - transfer.lba;
        let asked = if transfer.blocks == 0 { rest } else { u64::from(transfer.blocks) };
        let blocks = asked.min(u64::from(self.limits(&geometry).maximum_blocks)) as u32;
        let volume = &*self.volume;
        let fetch = async move {
            if !immediate && blocks > 0 {
                let extent = Extent { lba: Lba(transfer.lba), blocks };
                for piece in pieces(extent, geometry.block_size as usize) {
                    if volume.read(piece).await.is_err() {
                        break;
                    }
                }
            }
            Ok(())
        };
        Ok(finished(fetch, 0, turn))
    }
}
