//! At flush: a write is acknowledged at once, and becomes stable with the next flush. After a crash, either
//! all writes between two flushes are there or none of them. A write that must be stable at once includes a
//! flush.

use std::sync::Arc;

use volume::{Durability, Error};

use crate::{
    core::CacheCore,
    mode::discard::DiscardPlan,
    rules::{AcknowledgedAt, ModeRules, QueueOrder},
    settings::{DestageOrder, LogErrorPolicy, Settings},
    write::{HostWrite, PlacedWrite},
};

/// Recovery must find every segment up to the one that ends the last flush. Recovery discards the segments
/// after that.
pub(super) fn rules(settings: &Settings) -> ModeRules {
    ModeRules {
        acknowledged_at: AcknowledgedAt::Memory,
        uses_log: true,
        is_volatile: true,
        epochs_end_by_flush: true,
        queue_order: QueueOrder::Epochs,
        keeps_in_nvram: false,
        nvram_is_stable: false,
        keeps_over_power_loss: settings.buffer_is_stable(),
        keeps_bypassed: false,
        writes_back: true,
    }
}

pub(super) async fn write(core: &Arc<CacheCore>, write: HostWrite) -> Result<(), Error> {
    let durability = write.durability;
    if let PlacedWrite::Bypassed = core.place_write(write).await? {
        return Ok(());
    }
    if durability == Durability::Volatile {
        return Ok(());
    }
    let end = core.end_epoch();
    core.wait_for_log(end, durability).await
}

/// If the log is lost, the flush fails, but ends the epoch all the same, so that destage sends the epoch.
/// The next flush succeeds once the lower volume has everything that was written until now.
pub(super) fn begin_flush(core: &Arc<CacheCore>) -> Result<bool, Error> {
    core.check_log().inspect_err(|_| _ = core.end_epoch())?;
    Ok(true)
}

pub(super) async fn flush(core: &Arc<CacheCore>) -> Result<(), Error> {
    // `settle` ends the open epoch, so the flushed writes are destaged as one.
    core.settle().await?;
    core.log_on_disk().await
}

/// A discard becomes stable with the next flush.
pub(super) async fn discard(core: &Arc<CacheCore>, sector: u64, sectors: u64) -> Result<(), Error> {
    let mut plan = DiscardPlan::new(sector, sectors);
    while let Some(edge) = plan.next_edge(Durability::Volatile) {
        plan.edge_written(write(core, edge).await)?;
    }
    plan.discard_in_log(core, Durability::Volatile).await
}

pub(super) fn admit(core: &Arc<CacheCore>, bytes: usize) -> Result<(), Error> {
    core.admit_to_log(bytes)
}

/// Refuses settings with which a write may overtake the log: it would become stable without the other writes of its
/// epoch.
pub(super) fn check_settings(settings: &Settings) -> Result<(), String> {
    if settings.order != DestageOrder::Strict {
        return Err("report at flush needs strict order".into());
    }
    if settings.on_log_error != LogErrorPolicy::StopWrites {
        return Err("report at flush needs on_log_error that stops writes".into());
    }
    Ok(())
}
