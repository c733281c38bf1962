//! Immediate (STICS 5.1): a write is acknowledged when it is in the NVRAM. If the NVRAM has failed, a write is
//! acknowledged as after complete.

use std::sync::Arc;

use volume::{Durability, Error};

use crate::{
    core::CacheCore,
    mode::discard::DiscardPlan,
    rules::{AcknowledgedAt, ModeRules, QueueOrder},
    settings::{NvramSurvival, Settings},
    write::{HostWrite, PlacedWrite},
};

/// Recovery must find every acknowledged write in the log or in the NVRAM. The NVRAM alone may hold the
/// newest versions of slots; the log then holds a consistent prefix (decision 0007). If the NVRAM survives
/// the loss of power, a write in it counts as stable.
pub(super) fn rules(settings: &Settings) -> ModeRules {
    let is_stable = settings.nvram_survives == NvramSurvival::PowerLoss;
    ModeRules {
        acknowledged_at: AcknowledgedAt::Nvram,
        uses_log: true,
        is_volatile: !is_stable || settings.log_buffer.is_some(),
        epochs_end_by_flush: false,
        queue_order: QueueOrder::Segments,
        keeps_in_nvram: true,
        nvram_is_stable: is_stable,
        keeps_over_power_loss: is_stable || settings.buffer_is_stable(),
        keeps_bypassed: false,
        writes_back: true,
    }
}

pub(super) async fn write(core: &Arc<CacheCore>, write: HostWrite) -> Result<(), Error> {
    let durability = write.durability;
    let PlacedWrite::Queued(serial) = core.place_write(write).await? else { return Ok(()) };
    let needs_log = durability == Durability::Stable && !core.rules.nvram_is_stable;
    // If the NVRAM has failed, it keeps nothing, so the write waits for the log.
    if needs_log || !core.acknowledges_early(&core.state.lock()) {
        return core.wait_for_log(serial, durability).await;
    }
    Ok(())
}

pub(super) fn begin_flush(core: &Arc<CacheCore>) -> Result<bool, Error> {
    core.check_log()?;
    Ok(core.rules.is_volatile)
}

pub(super) async fn flush(core: &Arc<CacheCore>) -> Result<(), Error> {
    core.settle().await?;
    core.log_on_disk().await
}

/// The NVRAM holds no zeros, so a discard waits for the log.
pub(super) async fn discard(core: &Arc<CacheCore>, sector: u64, sectors: u64) -> Result<(), Error> {
    let mut plan = DiscardPlan::new(sector, sectors);
    while let Some(edge) = plan.next_edge(Durability::Stable) {
        plan.edge_written(write(core, edge).await)?;
    }
    plan.discard_in_log(core, Durability::Stable).await
}

pub(super) fn admit(core: &Arc<CacheCore>, bytes: usize) -> Result<(), Error> {
    core.admit_to_log(bytes)
}
