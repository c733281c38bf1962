//! Scrubbing: reads all dirty data in the log from time to time, at a low rate, so that corruption is
//! detected while there may be another copy to repair it from.

use std::{sync::Arc, time::Duration};

use journal::segment::LogRecordKind;
use tokio::time::sleep;

use crate::{
    core::CacheCore,
    slots::{sectors::SLOT_BYTES, table::LogAddress},
};

/// Scrubs until the cache is dropped. Does nothing if the rate is 0.
pub(crate) async fn run(shared: Arc<CacheCore>) {
    let rate = shared.settings.scrub_rate;
    if rate == 0 {
        return std::future::pending().await;
    }
    loop {
        sleep(BETWEEN_PASSES).await;
        let (mut at, mut older) = (0, 0);
        while let Some(step) = next(&shared, &mut at, &mut older) {
            let bytes = step.len() * SLOT_BYTES;
            for (slot, place) in step {
                scrub(&shared, slot, place).await;
            }
            // Pause at least a moment, since a step may have found nothing to read.
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            sleep(pause.max(LEAST_PAUSE)).await;
        }
        shared.counters.scrub.passes.add(1);
    }
}

/// Returns the next log addresses to check: those in the table, then those that are kept for sealed epochs.
/// Returns `None` at the end of the pass. Destage may remove entries meanwhile, so a pass may miss some. Such
/// entries do not stay in the log for long.
fn next(shared: &CacheCore, at: &mut u32, older: &mut usize) -> Option<Vec<(u64, LogAddress)>> {
    let state = shared.state.lock();
    let end = state.table.indices();
    if *at >= end {
        let items = state.epochs.sealed_places().skip(*older).take(READ_AT_ONCE);
        let items: Vec<_> = items.map(|item| (item.slot, item.place)).collect();
        *older += items.len();
        let data = |&(_, place): &(u64, LogAddress)| place.kind == LogRecordKind::Data;
        return (!items.is_empty()).then(|| items.into_iter().filter(data).collect());
    }
    let mut places = Vec::new();
    let last = at.saturating_add(LOOKED_AT).min(end);
    while *at < last && places.len() < READ_AT_ONCE {
        let entry = state.table.entry(*at);
        let place = entry.place.filter(|place| place.kind == LogRecordKind::Data);
        places.extend(place.map(|place| (entry.slot, place)));
        *at += 1;
    }
    Some(places)
}

async fn scrub(shared: &CacheCore, slot: u64, place: LogAddress) {
    let found = shared.log.examine(&place).await;
    shared.counters.scrub.scrubbed_slots.add(1);
    if matches!(found, Ok(Some(_))) {
        return;
    }
    // Report only slots that still have this log address: if a slot was destaged meanwhile, its block may
    // have been overwritten.
    let state = shared.state.lock();
    let current = state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place));
    let kept = || state.epochs.sealed_places().any(|it| (it.slot, it.place) == (slot, place));
    if current || kept() {
        shared.counters.scrub.rotten_slots.add(1);
        tracing::error!(
            slot,
            block = place.block,
            remedy = "write this block again from a host, or restore it from a backup; then check the \
             disk of the log, and keep a `log_mirror`",
            "dirty data cannot be read from the log any more"
        );
    }
}

/// The pause between two passes. Most dirty data is destaged much sooner. Data that stays longer, for example
/// during a pause of destage or an outage of the link, is checked in each pass.
const BETWEEN_PASSES: Duration = Duration::from_secs(600);
/// The shortest pause between two steps.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// Entries that are looked at in one go under the lock: some tens of microseconds.
const LOOKED_AT: u32 = 1024;
/// Blocks that are read in one step, one after the other.
const READ_AT_ONCE: usize = 64;
