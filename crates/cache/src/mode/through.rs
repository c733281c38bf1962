//! Through and around: a write is acknowledged when it is stable in the lower volume. The log receives no
//! data. With "through" the data of a write stays in memory, with "around" it does not.

use std::sync::Arc;

use volume::{Durability, Error};

use crate::{
    core::CacheCore,
    mode::discard::DiscardPlan,
    rules::{AcknowledgedAt, ModeRules, QueueOrder},
    settings::Settings,
    write::HostWrite,
};

/// Recovery needs no data of this mode. An earlier mode may have left writes in the log; until these are
/// destaged, a write that bypasses them also voids their records.
pub(super) fn rules(settings: &Settings) -> ModeRules {
    ModeRules {
        acknowledged_at: AcknowledgedAt::Lower,
        uses_log: false,
        is_volatile: settings.log_buffer.is_some(),
        epochs_end_by_flush: false,
        queue_order: QueueOrder::Any,
        keeps_in_nvram: false,
        nvram_is_stable: false,
        keeps_over_power_loss: settings.buffer_is_stable(),
        keeps_bypassed: true,
        writes_back: false,
    }
}

/// The rules of write mode "around", which differ from those of "through" in two points.
pub(super) fn rules_around(settings: &Settings) -> ModeRules {
    ModeRules { keeps_bypassed: false, writes_back: true, ..rules(settings) }
}

pub(super) async fn write(core: &Arc<CacheCore>, write: HostWrite) -> Result<(), Error> {
    core.write_bypassing(write.sector, write.data).await
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
    plan.discard_bypassing(core).await
}

pub(super) fn admit(core: &Arc<CacheCore>) -> Result<(), Error> {
    core.admit_bypass()
}
