//! The statistics of a cache in the form of the control socket.

use cache::{Cache, CacheStatistics, Coherent};
use control::{
    CacheClaim, CacheFigures, CacheHitFigures, CacheLogFigures, CacheRequestFigures,
    CacheTimeFigures, DestageFigures, DirtyDataFigures, EpochFigures, FarLinkFigures,
    LowerVolumeFigures, SharingFigures,
};
use volume::Holding;

use crate::figures;

/// Returns the figures that come from the cache itself: all except those of its log mirror, read tier and
/// volumes, and the source of its destage rate.
pub fn of(cache: &Cache, coherent: Option<&Coherent>) -> CacheFigures {
    let counted = cache.statistics();
    CacheFigures {
        claim: claim(&cache.holding()),
        dirty: dirty(&counted),
        requests: requests(&counted),
        hits: hits(&counted),
        destage: destage(&counted),
        far_link: far_link(&counted),
        lower: lower(&counted),
        log: log(&counted),
        epochs: epochs(&counted),
        sharing: coherent.map(sharing),
        times: times(cache),
        ..CacheFigures::default()
    }
}

/// Returns the local time `ms` milliseconds ago, as `2026-11-28T09:00:00+01:00`.
pub fn since(ms: u64) -> String {
    let ago = jiff::SignedDuration::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
    let now = jiff::Zoned::now();
    now.checked_sub(ago).unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Converts the state of the claim on a far volume into the form of the control socket.
pub fn claim(holding: &Holding) -> CacheClaim {
    match holding {
        Holding::Nothing | Holding::Unsupported => CacheClaim::None,
        Holding::Waiting => CacheClaim::Waiting,
        Holding::Held => CacheClaim::Held,
        Holding::Reserved => CacheClaim::Reserved,
        Holding::Refused(reason) => CacheClaim::Fenced(reason.to_string()),
    }
}

fn dirty(counted: &CacheStatistics) -> DirtyDataFigures {
    DirtyDataFigures {
        dirty_bytes: counted.destage.dirty_bytes,
        oldest_dirty_ms: counted.destage.oldest_dirty_ms,
        pending_slots: counted.log.pending_slots,
        commits: counted.log.commits,
        committed_slots: counted.log.committed_slots,
        recovered_slots: counted.recovery.slots,
        recovered_nvram: counted.recovery.nvram,
    }
}

fn requests(counted: &CacheStatistics) -> CacheRequestFigures {
    CacheRequestFigures {
        reads: counted.traffic.reads,
        read_bytes: counted.traffic.read_bytes,
        writes: counted.traffic.writes,
        written_bytes: counted.traffic.written_bytes,
        flushes: counted.traffic.flushes,
        discards: counted.traffic.discards,
        reads_nvram: counted.hits.reads_nvram,
        reads_dram: counted.hits.reads_dram,
        reads_log: counted.hits.reads_log,
        reads_tier: counted.hits.reads_tier,
        reads_lower: counted.hits.reads_lower,
        writes_near: counted.traffic.writes.saturating_sub(counted.traffic.bypassed),
    }
}

fn hits(counted: &CacheStatistics) -> CacheHitFigures {
    let hits = counted.hits.hits_nvram
        + counted.hits.hits_dram
        + counted.hits.hits_log
        + counted.hits.hits_tier;
    let ratio = hits as f64 / (hits + counted.hits.misses).max(1) as f64;
    CacheHitFigures {
        hit_ratio: (ratio * 1e4).round() / 1e4,
        hits_nvram: counted.hits.hits_nvram,
        hits_dram: counted.hits.hits_dram,
        hits_log: counted.hits.hits_log,
        hits_tier: counted.hits.hits_tier,
        misses: counted.hits.misses,
        fetched_bytes: counted.hits.fetched_bytes,
        read_ahead_bytes: counted.hits.read_ahead_bytes,
        read_ahead_used_slots: counted.hits.read_ahead_used_slots,
        read_ahead_wasted_slots: counted.hits.read_ahead_wasted_slots,
        dram_used_bytes: counted.log.dram_used_bytes,
        dram_bytes: counted.log.dram_bytes,
    }
}

fn destage(counted: &CacheStatistics) -> DestageFigures {
    DestageFigures {
        dirty_age_ms: counted.destage.dirty_age_ms,
        paused_since: counted.destage.paused_ms.map(since),
        destage_rate_bytes: counted.destage.rate,
        destage_rate_limit_bytes: counted.destage.rate_limit,
        destage_rounds: counted.destage.rounds,
        destaged_bytes: counted.destage.destaged_bytes,
        destaged_runs: counted.destage.destaged_runs,
        absorbed_slots: counted.destage.absorbed_slots,
        joined_slots: counted.destage.joined_slots,
        ..DestageFigures::default()
    }
}

fn far_link(counted: &CacheStatistics) -> FarLinkFigures {
    FarLinkFigures {
        far_write_rate: counted.link.write_rate,
        far_write_trip_us: counted.link.write_trip_us,
        far_write_window_bytes: counted.link.write_window,
        far_write_under_way_bytes: counted.link.write_under_way,
        far_read_rate: counted.link.read_rate,
        far_read_trip_us: counted.link.read_trip_us,
        far_read_window_bytes: counted.link.read_window,
        far_read_under_way_bytes: counted.link.read_under_way,
        far_read_waiting_bytes: counted.link.read_waiting,
        far_ahead_waiting_bytes: counted.link.ahead_waiting,
    }
}

fn lower(counted: &CacheStatistics) -> LowerVolumeFigures {
    LowerVolumeFigures {
        lower_errors: counted.lower.errors,
        lower_error: counted.lower.error.clone(),
        lower_away_since: counted.lower.away_ms.map(since),
        lower_refuses_since: counted.lower.refuses_ms.map(since),
        bypassed: counted.traffic.bypassed,
        refused_busy: counted.traffic.refused_busy,
    }
}

fn log(counted: &CacheStatistics) -> CacheLogFigures {
    CacheLogFigures {
        log_fill_percent: counted.log.fill_percent,
        log_lasts_s: counted.log.lasts_s,
        log_used_bytes: counted.log.used_bytes,
        log_bytes: counted.log.bytes,
        log_errors: counted.log.errors,
        log_error: counted.log.error.clone(),
        nvram_error: counted.log.nvram_error.clone(),
        log_mended: counted.log.mended,
        scrubbed_slots: counted.scrub.scrubbed_slots,
        scrub_passes: counted.scrub.passes,
        rotten_slots: counted.scrub.rotten_slots,
    }
}

fn epochs(counted: &CacheStatistics) -> EpochFigures {
    EpochFigures {
        order: counted.order.order.to_owned(),
        split_rounds: counted.order.split_rounds,
        split_epochs: counted.order.split_epochs,
        refused_epochs: counted.order.refused_epochs,
        rolled_back: counted.order.rolled_back,
        unflushed_segments: counted.recovery.unflushed_segments,
    }
}

fn sharing(coherent: &Coherent) -> SharingFigures {
    let tokens = coherent.tokens();
    SharingFigures {
        share_joined: tokens.joined,
        share_leased: tokens.leased,
        share_grain_bytes: tokens.grain_bytes,
        share_ranges_read: tokens.shared as u64,
        share_ranges_written: tokens.exclusive as u64,
        share_recalled: tokens.given_back,
        share_waited: tokens.waited,
        share_lost: tokens.lost,
    }
}

fn times(cache: &Cache) -> CacheTimeFigures {
    let mut times = CacheTimeFigures::default();
    for (name, taken) in cache.times() {
        let place = match name {
            "read" => &mut times.time_read,
            "write" => &mut times.time_write,
            "flush" => &mut times.time_flush,
            "discard" => &mut times.time_discard,
            "lower_read" => &mut times.time_lower_read,
            "lower_write" => &mut times.time_lower_write,
            "lower_flush" => &mut times.time_lower_flush,
            "lower_discard" => &mut times.time_lower_discard,
            "lower_other" => &mut times.time_lower_other,
            _ => continue,
        };
        *place = figures::times(&taken);
    }
    times
}
