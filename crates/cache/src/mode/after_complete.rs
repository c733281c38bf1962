//! After complete (STICS 5.1): a write is acknowledged when it is on the log disk.

use std::sync::Arc;

use volume::{Durability, Error};

use crate::{
    core::CacheCore,
    mode::discard::DiscardPlan,
    rules::{AcknowledgedAt, ModeRules, QueueOrder},
    settings::Settings,
    write::{HostWrite, PlacedWrite},
};

/// Recovery must find every acknowledged write in the log. With NVRAMs in front of a pair's log, a write is
/// volatile until a flush of the log has brought it to the disks.
pub(super) fn rules(settings: &Settings) -> ModeRules {
    ModeRules {
        acknowledged_at: AcknowledgedAt::Log,
        uses_log: true,
        is_volatile: settings.log_buffer.is_some(),
        epochs_end_by_flush: false,
        queue_order: QueueOrder::Any,
        keeps_in_nvram: false,
        nvram_is_stable: false,
        keeps_over_power_loss: settings.buffer_is_stable(),
        keeps_bypassed: false,
        writes_back: true,
    }
}

pub(super) async fn write(core: &Arc<CacheCore>, write: HostWrite) -> Result<(), Error> {
    let durability = write.durability;
    match core.place_write(write).await? {
        PlacedWrite::Bypassed => Ok(()),
        PlacedWrite::Queued(serial) => core.wait_for_log(serial, durability).await,
    }
}

pub(super) fn begin_flush(core: &Arc<CacheCore>) -> Result<bool, Error> {
    core.check_log()?;
    Ok(core.rules.is_volatile)
}

pub(super) async fn flush(core: &Arc<CacheCore>) -> Result<(), Error> {
    core.settle().await?;
    core.log_on_disk().await
}

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
