//! Scrubbing: reads all dirty data in the log from time to time, at a low rate, so that corruption is
//! detected while there may be another copy to repair it from.

use std::{collections::HashSet, sync::Arc, time::Duration};

use journal::segment::LogRecordKind;
use tokio::time::sleep;
use volume::{ConditionChange, OngoingCondition};

use crate::{
    core::CacheCore,
    slots::{sectors::SLOT_BYTES, table::LogAddress},
};

/// Scrubs the log at the configured rate until the cache is dropped. A rate of 0 disables the scrub.
pub(crate) async fn run(shared: Arc<CacheCore>) {
    let rate = shared.settings.scrub_rate;
    if rate == 0 {
        return std::future::pending().await;
    }
    let mut corrupt = CorruptSlots::default();
    loop {
        sleep(BETWEEN_PASSES).await;
        let (mut at, mut older) = (0, 0);
        while let Some(step) = next(&shared, &mut at, &mut older) {
            let bytes = step.len() * SLOT_BYTES;
            for (slot, place) in step {
                if !scrub(&shared, slot, place).await {
                    corrupt.report(slot, place);
                }
            }
            // Always pause, because a step that found nothing to read yields a pause of 0: the loop would not end.
            let pause = Duration::from_secs_f64(bytes as f64 / rate as f64);
            sleep(pause.max(LEAST_PAUSE)).await;
        }
        shared.counters.scrub.passes.add(1);
        corrupt.end_pass();
    }
}

/// The dirty slots that scrubbing has found to be corrupt. An event names each of them once, and not in every pass.
#[derive(Default)]
struct CorruptSlots {
    named: HashSet<(u64, u64)>,
    /// The number of corrupt slots found in the present pass.
    found: u64,
    condition: OngoingCondition,
}

impl CorruptSlots {
    fn report(&mut self, slot: u64, place: LogAddress) {
        self.found += 1;
        self.condition.turn(true);
        if self.named.len() < MOST_NAMED && self.named.insert((slot, place.segment)) {
            tracing::error!(
                slot,
                block = place.block,
                remedy = "write this block again from a host, or restore it from a backup; then check the \
                 disk of the log, and keep a `log_mirror`",
                "dirty data cannot be read from the log any more"
            );
        }
    }

    /// Ends a pass. Reports that the log has no corrupt slots any more, if it had some before.
    fn end_pass(&mut self) {
        let is_corrupt = std::mem::take(&mut self.found) > 0;
        if let Some(ConditionChange::Ends(lasted)) = self.condition.turn(is_corrupt) {
            self.named.clear();
            let lasted_s = lasted.as_secs();
            tracing::info!(lasted_s, "all dirty data can be read from the log again");
        }
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

/// Reads one slot from the log and checks it. Returns false if its data is lost.
async fn scrub(shared: &CacheCore, slot: u64, place: LogAddress) -> bool {
    let found = shared.log.examine(&place).await;
    shared.counters.scrub.scrubbed_slots.add(1);
    if matches!(found, Ok(Some(_))) {
        return true;
    }
    // Report only slots that still have this log address: if a slot was destaged meanwhile, its block may
    // have been overwritten.
    let state = shared.state.lock();
    let current = state.table.find(slot).is_some_and(|i| state.table.entry(i).place == Some(place));
    let kept = || state.epochs.sealed_places().any(|it| (it.slot, it.place) == (slot, place));
    let is_lost = current || kept();
    shared.counters.scrub.rotten_slots.add(u64::from(is_lost));
    !is_lost
}

/// The pause between two passes. Most dirty data is destaged much sooner. Data that stays longer, for example
/// during a pause of destage or an outage of the link, is checked in each pass.
const BETWEEN_PASSES: Duration = Duration::from_secs(600);
/// Maximum number of corrupt slots that events name: some 100 KB of events. All others are only
/// counted.
const MOST_NAMED: usize = 1000;
/// The shortest pause between two steps of scrubbing.
const LEAST_PAUSE: Duration = Duration::from_millis(1);
/// Number of entries that are looked at in one go under the lock: some tens of microseconds.
const LOOKED_AT: u32 = 1024;
/// Number of log blocks that one step reads, one after the other.
const READ_AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tracing::{Event, Level, Metadata, Subscriber, span};

    use super::*;

    /// A subscriber that records the levels of all events.
    #[derive(Clone, Default)]
    struct Levels(Arc<Mutex<Vec<Level>>>);

    impl Subscriber for Levels {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            self.0.lock().push(*event.metadata().level());
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_corrupt_slot_gets_one_event_in_any_number_of_passes_and_its_end_one() {
        let levels = Levels::default();
        let _guard = tracing::subscriber::set_default(levels.clone());
        let mut corrupt = CorruptSlots::default();
        let kind = LogRecordKind::Data;
        let place = LogAddress { segment: 1, block: 2, checksum: 3, mask: 0xff, kind };
        for _ in 0..5 {
            corrupt.report(7, place);
            corrupt.report(8, place);
            corrupt.end_pass();
        }
        corrupt.end_pass();
        corrupt.end_pass();
        assert_eq!(*levels.0.lock(), [Level::ERROR, Level::ERROR, Level::INFO]);
        for slot in 0..2 * MOST_NAMED as u64 {
            corrupt.report(slot, place);
        }
        assert_eq!(levels.0.lock().len(), 3 + MOST_NAMED, "the others are only counted");
    }
}
