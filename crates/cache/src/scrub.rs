//! Scrubbing: all that is dirty in the log is read now and then, at a low rate, so that rot is found
//! while there may be another copy to mend it from.

use std::{sync::Arc, time::Duration};

use journal::segment::LogRecordKind;
use tokio::time::sleep;

use crate::{
    core::CacheCore,
    slots::{sectors::SLOT_BYTES, table::LogAddress},
};

/// Scrubs for as long as the cache lives, unless its rate is 0.
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
            // At least a moment, since a step may have found nothing to read.
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            sleep(pause.max(LEAST_PAUSE)).await;
        }
        shared.counters.scrub.passes.add(1);
    }
}

/// The next places to look at: those in the table, then what is kept for sealed epochs; none when all
/// were seen. What goes down meanwhile may make it miss some: they are not long in the log.
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
    // What was destaged meanwhile may have been written over.
    let state = shared.state.lock();
    let current = state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place));
    let kept = || state.epochs.sealed_places().any(|it| (it.slot, it.place) == (slot, place));
    if current || kept() {
        shared.counters.scrub.rotten_slots.add(1);
        tracing::error!(
            slot,
            block = place.block,
            "what is dirty cannot be read from the log any more"
        );
    }
}

/// Between two times that everything is read. Most dirty data goes down much sooner; what stays
/// longer (a pause, a link that is down) is looked at again and again.
const BETWEEN_PASSES: Duration = Duration::from_secs(600);
/// Between two steps.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// Entries looked at under the lock at once: some tens of microseconds.
const LOOKED_AT: u32 = 1024;
/// Blocks read in one step, one after the other.
const READ_AT_ONCE: usize = 64;
