//! The settings of a cache in the form of the crate `cache`.

use cache::{LogKey, WriteMode};
use config::{
    CacheLayerSettings,
    quantity::{Size, TimeSpan},
};

use crate::{confirmed_writes, key_file, not_opened::NotOpened};

/// Returns the settings for the crate `cache`. `owner` is the name of this gateway in its claim on the lower volume.
///
/// # Errors
/// The key of the log cannot be used.
pub fn behaviour(settings: &CacheLayerSettings, owner: &str) -> Result<cache::Settings, NotOpened> {
    let key = settings.key().map(|key| key_file::open(&key)).transpose();
    let key = key.map_err(NotOpened::Refused)?;
    let millis = |span: TimeSpan| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX).max(1);
    let bytes = |size: Size| u32::try_from(size.0).unwrap_or(u32::MAX);
    Ok(cache::Settings {
        dram_bytes: settings.dram.0,
        nvram_bytes: settings.nvram_size.0,
        report: match settings.report {
            // In a pair, the cache regards a write as logged when the NVRAMs in front of both legs hold it.
            WriteMode::Immediate if settings.pair.is_some() => WriteMode::AfterComplete,
            report => report,
        },
        nvram_survives: settings.nvram_survives,
        log_buffer: (settings.pair.is_some() && settings.report == WriteMode::Immediate)
            .then_some(settings.nvram_survives),
        order: settings.order,
        too_large: settings.epoch_too_large,
        on_log_error: settings.on_log_error,
        scrub_rate: settings.log_scrub.0,
        destage_threshold: settings.destage_threshold,
        idle_ms: millis(settings.destage_idle),
        destage_run_bytes: bytes(settings.destage_run),
        destage_in_flight: settings.destage_in_flight.into(),
        max_dirty_age_ms: millis(settings.dirty_age),
        busy_after_ms: u64::try_from(settings.busy_after.0.as_millis()).unwrap_or(u64::MAX),
        // Read nothing ahead on a shared volume: data that is read before its coherence token is granted may be older
        // than the writes of other gateways.
        read_ahead_bytes: if settings.share { 0 } else { bytes(settings.read_ahead) },
        shares: settings.share,
        owner: owner.to_owned(),
        takes_over: settings.takes_over,
        accept_loss: settings.accept_loss,
        log_key: key.map(|(key, _)| LogKey::new(key.bytes())),
        confirmed_in: settings.state.as_deref().map(confirmed_writes::store),
        boot: confirmed_writes::boot_id(),
        ..cache::Settings::default()
    })
}
