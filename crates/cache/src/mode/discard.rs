//! The parts of a discard. Whole slots become records of zeros in the log, or are discarded in the lower
//! volume directly. Zeros are written to the rest.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};
use volume::{Data, Durability, Error};

use crate::{
    core::CacheCore,
    mutant::Mutant,
    slots::sectors::{SECTOR_BYTES, SECTORS, SLOT_BYTES},
    write::{HostWrite, may_pass, room::BETWEEN_STEPS, stalled},
};

/// A discard in progress. First write zeros to the [edges](Self::next_edge), then discard the whole slots.
pub(super) struct DiscardPlan {
    /// Ranges of sectors at either end that do not fill a slot, and still have to be overwritten with zeros.
    edges: [Option<(u64, u64)>; 2],
    /// The slots that the discard covers completely, `first .. end`; the range may be empty.
    slots: (u64, u64),
    /// True if the discard has already changed data. The call must not return BUSY then, because BUSY means that
    /// nothing was changed.
    begun: bool,
}

impl DiscardPlan {
    /// Plans the discard of `sectors` sectors from `sector` on.
    pub fn new(sector: u64, sectors: u64) -> Self {
        let per_slot = u64::from(SECTORS);
        let end = sector + sectors;
        // If the end of the volume cuts the last slot short, write zeros to this slot instead of recording
        // the whole slot as zeros: the volume may grow, and the rest of the slot may hold data then.
        let (first_slot, end_slot) = (sector.div_ceil(per_slot), end / per_slot);
        let (edges, slots) = if first_slot >= end_slot {
            ([(sector, end), (end, end)], (0, 0))
        } else {
            let edges = [(sector, first_slot * per_slot), (end_slot * per_slot, end)];
            (edges, (first_slot, end_slot))
        };
        let edges = edges.map(|edge| Some(edge).filter(|(start, end)| start < end));
        Self { edges, slots, begun: false }
    }

    /// Returns the next edge as a write of zeros. Pass the result of the write to [`Self::edge_written`].
    pub fn next_edge(&mut self, durability: Durability) -> Option<HostWrite> {
        let (sector, end) = self.edges.iter_mut().find_map(Option::take)?;
        let data = Data::zeros((end - sector) as usize * SECTOR_BYTES);
        Some(HostWrite { sector, data, durability, has_begun: self.begun })
    }

    /// Records how a write of zeros has ended.
    ///
    /// # Errors
    /// The error of the write. The error is BUSY only if nothing was changed.
    pub fn edge_written(&mut self, written: Result<(), Error>) -> Result<(), Error> {
        let has_begun = std::mem::replace(&mut self.begun, true);
        written.map_err(|error| if has_begun { stalled(error) } else { error })
    }

    /// Discards the slots through the log, and waits until the discard has this `durability`. The discard
    /// bypasses the log if the log has no room, or if it is long and the order is relaxed.
    pub async fn discard_in_log(
        mut self,
        core: &Arc<CacheCore>,
        durability: Durability,
    ) -> Result<(), Error> {
        let (first, end) = self.slots;
        if first >= end {
            return Ok(());
        }
        let bytes = (end - first) * SLOT_BYTES as u64;
        let short = bytes <= u64::from(core.settings.discard_log_bytes);
        let logged = (short || (core.is_strict() && !core.mutation.is(Mutant::DiscardOvertakes)))
            && core.write_zeros(first, end, durability, &mut self.begun).await?;
        if logged { Ok(()) } else { self.discard_bypassing(core).await }
    }

    /// Discards the slots in the lower volume directly. A discard that has changed something is repeated
    /// while it fails with an error that may pass.
    pub async fn discard_bypassing(self, core: &Arc<CacheCore>) -> Result<(), Error> {
        let Self { slots: (first, end), begun, .. } = self;
        if first >= end {
            return Ok(());
        }
        let started = Instant::now();
        loop {
            match core.discard_bypassing(first, end).await {
                Err(error) if begun && may_pass(&error) && started.elapsed() < BETWEEN_STEPS => {
                    tracing::trace!(%error, "a discard that is partly done waits");
                    sleep(BYPASS_AGAIN).await;
                }
                discarded => {
                    return discarded.map_err(|error| if begun { stalled(error) } else { error });
                }
            }
        }
    }
}

/// The pause between two attempts of a discard that bypasses the log and must be finished.
const BYPASS_AGAIN: Duration = Duration::from_secs(1);
