//! Gathers the statistics of a cache from its parts.

use volume::TimeHistogramSnapshot;

use super::Cache;
use crate::{nvram::NvramBuffer, slots::sectors::SLOT_BYTES, statistics::CacheStatistics};

impl Cache {
    /// Returns the cache's counters since it was opened, and its current state.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let shared = &self.shared;
        let mut statistics = shared.counters.snapshot();
        statistics.order.order = shared.promise();
        let far_writes = shared.lower.link.writes.lock().estimate();
        statistics.link.write_rate = far_writes.rate;
        statistics.link.write_trip_us = far_writes.trip.as_micros() as u64;
        statistics.link.write_window = far_writes.window;
        statistics.link.write_under_way = far_writes.under_way;
        let far_reads = shared.lower.link.reads.estimate();
        statistics.link.read_rate = far_reads.rate;
        statistics.link.read_trip_us = far_reads.trip.as_micros() as u64;
        statistics.link.read_window = far_reads.window;
        statistics.link.read_under_way = far_reads.under_way;
        let backlog = shared.lower.link.reads.backlog();
        statistics.link.read_waiting = backlog.stream;
        statistics.link.ahead_waiting = backlog.ahead;
        let mut state = shared.state.lock();
        let dirty = state.table.dirty() as u64;
        statistics.destage.dirty_slots = dirty;
        statistics.destage.dirty_bytes = dirty * SLOT_BYTES as u64;
        statistics.destage.oldest_dirty_ms =
            state.destage.dirty_since.map_or(0, |since| since.elapsed().as_millis() as u64);
        statistics.destage.dirty_age_ms = shared.settings.max_dirty_age_ms;
        statistics.destage.rate = state.destage.meter.rate();
        statistics.destage.rate_limit = state.destage.orders.rate;
        statistics.destage.paused_ms =
            state.destage.orders.paused_since.map(|since| since.elapsed().as_millis() as u64);
        statistics.log.pending_slots = state.queue.pending_slots() as u64;
        statistics.log.dram_used_bytes = (state.table.resident() * SLOT_BYTES) as u64;
        let ahead = state.table.ahead();
        statistics.hits.read_ahead_used_slots = ahead.used;
        statistics.hits.read_ahead_wasted_slots = ahead.wasted;
        statistics.tier = state.tier.statistics();
        statistics.log.dram_bytes = shared.settings.dram_bytes;
        statistics.log.used_bytes = u64::from(state.log.ring.used()) * SLOT_BYTES as u64;
        statistics.log.bytes = u64::from(state.log.ring.blocks()) * SLOT_BYTES as u64;
        statistics.log.committed_segment = state.log.ring.next() - 1;
        statistics.log.error = state.log_error().as_ref().map(ToString::to_string);
        let nvram_error = state.nvram.as_ref().and_then(NvramBuffer::error);
        statistics.log.nvram_error = nvram_error.map(|error| {
            format!("{error}; until the next start every write waits for the log disk")
        });
        let trouble = shared.trouble_below(&state);
        statistics.lower.away_ms = trouble.away.map(|time| time.as_millis() as u64);
        statistics.lower.is_silent = trouble.is_silent;
        statistics.lower.refuses_ms = trouble.refuses.map(|time| time.as_millis() as u64);
        statistics.lower.error = trouble.error;
        let sent = state.destage.round.as_ref().map_or(0, |round| round.sent_bytes);
        statistics.destage.round_sent_bytes = sent.min(statistics.destage.dirty_bytes);
        let fill = shared.fill(&mut state);
        statistics.log.fill_percent = fill.percent;
        statistics.log.lasts_s = fill.lasts.map(|lasts| lasts.as_secs());
        statistics
    }

    /// Returns how long calls took, by kind: calls of hosts ("read", "write", "flush", "discard") and calls
    /// to the lower volume ("lower_read" and so on).
    #[must_use]
    pub fn times(&self) -> Vec<(&'static str, TimeHistogramSnapshot)> {
        self.shared.times.taken()
    }
}
