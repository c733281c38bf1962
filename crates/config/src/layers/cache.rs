//! The layer `cache`: the write-back cache of a gateway, or of a storage node.

use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use ::cache::{
    DestageOrder, LogErrorPolicy, NvramSurvival, OversizedEpoch, Settings as Cache, WriteMode,
};
use serde::Deserialize;

use super::{
    EncryptLayerSettings, Layer, RemoteLayerSettings, file::LayerFiles, reload::LayerChange,
};
use crate::{
    problem::KeyPath,
    quantity::{Size, TimeSpan},
    rule::{SettingsRuleResult, range, whole, wrong},
    schedule::{Hours, Schedule},
    used_files::path,
    value_types::FileEngineSetting,
};

/// Settings of a cache layer.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CacheLayerSettings {
    /// The log disk: a file or a block device of its own. Acknowledged data that has not reached the far side is only
    /// here. Required.
    pub log: PathBuf,
    /// Size of the log in bytes, at least 8 MiB. The file is created with it if it does not exist. An existing log
    /// keeps its size (`forebay gateway log-resize` changes it).
    pub log_size: Option<Size>,
    /// A second file or device of the same size with the same content: either of the two may be lost.
    pub log_mirror: Option<PathBuf>,
    /// Whether a mirrored log is used with one half although the other half may have newer writes. Set it for one
    /// start, when the other half is gone for good.
    pub log_degraded: bool,
    /// Number of bytes of dirty data in the log that are read and verified each second, to find damage in time; 0 for
    /// none.
    pub log_scrub: Size,
    /// Encrypts what the log and the NVRAM hold of the volume (AES-256-GCM): the file with the key, made with
    /// `forebay key FILE --secret-file SECRET`. Without the key, dirty data is lost: keep a copy.
    pub log_key: Option<PathBuf>,
    /// The file with the secret that unwraps the key of the log.
    pub log_secret_file: Option<PathBuf>,
    /// The other gateway of a pair: `[target.unit.stack.cache.pair]`.
    pub pair: Option<Box<PairPartnerSettings>>,
    /// The I/O engine of the log, as `engine` of a file.
    pub log_engine: FileEngineSetting,
    /// Whether the log bypasses the page cache, as `direct` of a file.
    pub log_direct: bool,
    /// The NVRAM file, which immediate report needs. Its place decides which failures acknowledged writes survive: on
    /// tmpfs or on the file system of a disk, a killed process; on persistent memory (DAX), also a power failure, if
    /// `nvram_survives` says so.
    pub nvram: Option<PathBuf>,
    /// The failures that the NVRAM survives: "restart" (of the process) or "power-loss". With "power-loss", its
    /// content counts as stable, and with immediate report neither a flush nor a write with FUA waits for the log
    /// disk. This is right only on storage that keeps its bytes without power: persistent memory (DAX), or memory
    /// with a battery.
    pub nvram_survives: NvramSurvival,
    /// Number of bytes that may wait for the log disk, and size of the NVRAM: at most half of `dram`.
    pub nvram_size: Size,
    /// Size of the read cache in memory, in bytes.
    pub dram: Size,
    /// When a write is acknowledged: "after-complete" (stable on the log disk), "immediate" (in NVRAM), "through"
    /// (stable at the far side; the log takes nothing new) or "around" (as "through", and the data is not kept in
    /// memory). For a cache at a storage node, over its file or device, there is "at-flush": at once, and stable with
    /// the next flush; the writes between two flushes count as a whole or not at all.
    pub report: WriteMode,
    /// Whether anything may overtake the log on its way down: "strict" (nothing: a full log makes writes wait) or
    /// "relaxed" (writes while the log is full, and long discards: the far side alone is then no consistent prefix).
    pub order: DestageOrder,
    /// For report at flush: what is done with more data between two flushes than about half the log. "refuse": writes
    /// fail. "split": the data so far counts without the rest, and `split_epochs` in the status counts that.
    pub epoch_too_large: OversizedEpoch,
    /// What is done with writes while the log disk fails: "stop-writes" (they fail) or "write-through" (they go to
    /// the far side, stable, if the log has no data of their blocks; otherwise they fail).
    pub on_log_error: LogErrorPolicy,
    /// Share of the log above which destage no longer waits for an idle moment, 0.05 to 0.9.
    pub destage_threshold: f64,
    /// Time without requests that counts as idle.
    pub destage_idle: TimeSpan,
    /// Maximum length of a destage write in bytes, 4 KiB to 1 MiB.
    pub destage_run: Size,
    /// Maximum number of destage writes of full length in flight, 1 to 2048; with 1, always one. The actual number
    /// follows from the link.
    pub destage_in_flight: u16,
    /// Maximum destage rate in bytes per second, 4 KiB or more. Writes that bypass a full log are not limited. If
    /// left out: as fast as the link.
    pub destage_rate: Option<Size>,
    /// Times of the day with another rate, in local time (TZ, /etc/localtime). The first one that fits applies. If
    /// `to` is before `from`, it is on the next day. A rate of 0 sends nothing.
    pub destage_rates: Vec<Hours>,
    /// Age at which data goes to the far side even if requests never pause.
    pub dirty_age: TimeSpan,
    /// How long a write waits for room in a full log, with nothing done, before the host gets BUSY: 0s (at once) to
    /// 25s.
    pub busy_after: TimeSpan,
    /// A second read tier on a local disk: a file or block device of its own, for data that leaves memory. It never
    /// has the only copy of anything.
    pub read_tier: Option<PathBuf>,
    /// Size of the read tier in bytes, at least 1 MiB. The file is created with it if it does not exist. It uses 20
    /// bytes of memory for each 4 KiB, 32 with `log_key`.
    pub read_tier_size: Option<Size>,
    /// Maximum number of bytes that are read ahead of a sequential reader, at most 512 MiB; 0 for none. The cache
    /// reads ahead as much as the reader reads in the time of two fetches.
    pub read_ahead: Size,
    /// Whether other gateways change the volume, too, and all of them have tokens for what they read and write. Its
    /// unit at the node has `share_grain`.
    pub share: bool,
    /// Whether a damaged log is used although acknowledged writes are missing from it. Set it for one start, after
    /// `forebay check` has reported what is missing, and remove it again.
    pub accept_loss: bool,
    /// The log was brought here on purpose, and its former gateway is fenced. This cannot be set in a file, because
    /// it applies only once.
    #[serde(skip)]
    pub takes_over: bool,
    /// The folder of the log's confirmed writes. The program sets it, not the file.
    #[serde(skip)]
    pub state: Option<PathBuf>,
    /// The settings file, for the commands in messages. The program sets it, not the file.
    #[serde(skip)]
    pub config: PathBuf,
}

/// The other gateway of a pair.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PairPartnerSettings {
    /// The unit under which the partner shows its half of the log, with the keys of a remote layer. Required.
    pub partner: RemoteLayerSettings,
    /// Time without an answer after which the partner counts as failed, 1s to 60s. If left out: 3s.
    pub dead_after: TimeSpan,
    /// Whether this gateway serves if both could. Set it at one of the two. If left out: no.
    pub first: bool,
}

impl Default for CacheLayerSettings {
    /// Returns the defaults of the crate `cache` where it has the key, too.
    fn default() -> Self {
        let usual = Cache::default();
        Self {
            log: PathBuf::new(),
            log_size: None,
            log_mirror: None,
            log_degraded: false,
            log_scrub: Size(usual.scrub_rate),
            pair: None,
            log_key: None,
            log_secret_file: None,
            log_engine: FileEngineSetting::default(),
            log_direct: true,
            nvram: None,
            nvram_survives: usual.nvram_survives,
            nvram_size: Size(usual.nvram_bytes),
            dram: Size(usual.dram_bytes),
            report: usual.report,
            order: usual.order,
            epoch_too_large: usual.too_large,
            on_log_error: usual.on_log_error,
            destage_threshold: usual.destage_threshold,
            destage_idle: TimeSpan::millis(usual.idle_ms),
            destage_run: Size(usual.destage_run_bytes.into()),
            destage_in_flight: u16::try_from(usual.destage_in_flight).expect("it is at most 2048"),
            destage_rate: None,
            destage_rates: Vec::new(),
            dirty_age: TimeSpan::millis(usual.max_dirty_age_ms),
            busy_after: TimeSpan::millis(usual.busy_after_ms),
            read_tier: None,
            read_tier_size: None,
            read_ahead: Size(usual.read_ahead_bytes.into()),
            share: false,
            accept_loss: false,
            takes_over: false,
            state: None,
            config: PathBuf::new(),
        }
    }
}

impl Default for PairPartnerSettings {
    fn default() -> Self {
        Self {
            partner: RemoteLayerSettings::default(),
            dead_after: TimeSpan::seconds(3),
            first: false,
        }
    }
}

impl CacheLayerSettings {
    /// Returns the layer of the log's key, if the log is encrypted.
    pub fn key(&self) -> Option<EncryptLayerSettings> {
        let key = self.log_key.clone()?;
        Some(EncryptLayerSettings {
            key,
            secret_file: self.log_secret_file.clone(),
            secret_env: None,
        })
    }

    /// Returns the rates of destage over the day.
    pub fn schedule(&self) -> Schedule {
        let otherwise = self.destage_rate.map(|rate| rate.0);
        Schedule { hours: self.destage_rates.clone(), otherwise }
    }

    pub(crate) fn resolve(&mut self, folder: &Path) {
        self.log = folder.join(&self.log);
        for path in [
            &mut self.log_mirror,
            &mut self.read_tier,
            &mut self.nvram,
            &mut self.log_key,
            &mut self.log_secret_file,
        ] {
            *path = path.take().map(|path| folder.join(path));
        }
    }

    /// A reload may change the rates of destage.
    pub(super) fn reload(&mut self, new: &Self) -> LayerChange {
        if self.schedule() == new.schedule() {
            return LayerChange::None;
        }
        self.destage_rate = new.destage_rate;
        self.destage_rates.clone_from(&new.destage_rates);
        LayerChange::Other("the rate of its destage".to_owned())
    }

    /// Checks the keys at `at`.
    pub(crate) fn check<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        self.check_log(at, files)?;
        self.check_nvram(at, files)?;
        self.check_read_tier(at, files)?;
        if self.report == WriteMode::AtFlush {
            self.check_at_flush(at)?;
        }
        if let Some(pair) = &self.pair {
            pair.check(self, at)?;
        }
        self.check_ranges(at)
    }

    fn check_log<'a>(&'a self, at: &KeyPath, files: &mut LayerFiles<'a>) -> SettingsRuleResult {
        path(at, "log", &self.log, files)?;
        if let Some(mirror) = &self.log_mirror {
            path(at, "log_mirror", mirror, files)?;
        }
        if let Some(key) = &self.log_key {
            path(at, "log_key", key, files)?;
            let remedy =
                "add log_secret_file = \"FILE\", made with `forebay secret FILE --characters 64`";
            if self.log_secret_file.is_none() {
                return wrong(at.key("log_key"), "there is no secret that unlocks it", remedy);
            }
        } else if self.log_secret_file.is_some() {
            let message = "a secret, and no key that it unlocks";
            return wrong(
                at.key("log_secret_file"),
                message,
                "add log_key = \"FILE\", made with `forebay key FILE`",
            );
        }
        Ok(())
    }

    fn check_nvram<'a>(&'a self, at: &KeyPath, files: &mut LayerFiles<'a>) -> SettingsRuleResult {
        if let Some(nvram) = &self.nvram {
            path(at, "nvram", nvram, files)?;
        } else if self.report == WriteMode::Immediate {
            return wrong(
                at.key("report"),
                "immediate report needs NVRAM, and there is none",
                "add `nvram = \"FILE\"` on storage that survives what you need it to survive, or use \
                 \"after-complete\"",
            );
        }
        if self.nvram_survives == NvramSurvival::PowerLoss && self.nvram.is_none() {
            let message = "there is no NVRAM that could survive a loss of power";
            return wrong(at.key("nvram_survives"), message, "add `nvram = \"FILE\"`");
        }
        Ok(())
    }

    fn check_read_tier<'a>(
        &'a self,
        at: &KeyPath,
        files: &mut LayerFiles<'a>,
    ) -> SettingsRuleResult {
        if let Some(tier) = &self.read_tier {
            path(at, "read_tier", tier, files)?;
        } else if self.read_tier_size.is_some() {
            let message = "the size of a read tier, and there is none";
            return wrong(at.key("read_tier_size"), message, "add read_tier = \"FILE\"");
        }
        whole(at, "read_tier_size", self.read_tier_size, Size(4096))?;
        if let Some(size) = self.read_tier_size {
            range(at, "read_tier_size", size, Size::mib(1), Size(1 << 44))?;
        }
        Ok(())
    }

    fn check_ranges(&self, at: &KeyPath) -> SettingsRuleResult {
        let least = Size::mib(1);
        whole(at, "log_size", self.log_size, Size(4096))?;
        if let Some(size) = self.log_size {
            range(at, "log_size", size, Size::mib(8), Size(1 << 44))?;
        }
        range(at, "log_scrub", self.log_scrub, Size(0), Size(1 << 40))?;
        range(at, "dram", self.dram, least, Size(1 << 42))?;
        range(at, "nvram_size", self.nvram_size, Size::kib(64), Size(self.dram.0 / 2))?;
        sizes(at, "destage_run", self.destage_run, &Cache::DESTAGE_RUN_BYTES)?;
        let (least_runs, most_runs) = Cache::DESTAGE_IN_FLIGHT.into_inner();
        range(at, "destage_in_flight", self.destage_in_flight.into(), least_runs, most_runs)?;
        if let Some(rate) = self.destage_rate {
            range(at, "destage_rate", rate, Size::kib(4), Size(1 << 40))?;
        }
        rates(at, &self.destage_rates)?;
        spans(at, "destage_idle", self.destage_idle, &Cache::IDLE_MS)?;
        range(at, "dirty_age", self.dirty_age, TimeSpan::millis(1), TimeSpan::seconds(86_400))?;
        spans(at, "busy_after", self.busy_after, &Cache::BUSY_AFTER_MS)?;
        sizes(at, "read_ahead", self.read_ahead, &Cache::READ_AHEAD_BYTES)?;
        if !(0.05..=0.9).contains(&self.destage_threshold) {
            return wrong(
                at.key("destage_threshold"),
                "not between 0.05 and 0.9",
                "write a share of the log such as 0.5",
            );
        }
        Ok(())
    }

    /// Checks the keys that depend on writes that become stable with a flush.
    fn check_at_flush(&self, at: &KeyPath) -> SettingsRuleResult {
        if self.order != DestageOrder::Strict {
            return wrong(
                at.key("order"),
                "what overtakes the log breaks what is between two flushes",
                "leave `order` out, or use another `report`",
            );
        }
        if self.on_log_error != LogErrorPolicy::StopWrites {
            return wrong(
                at.key("on_log_error"),
                "what goes past the log breaks what is between two flushes",
                "leave `on_log_error` out, or use another `report`",
            );
        }
        Ok(())
    }

    /// Checks the keys of a cache whose volume other gateways change, too. `below` has the layers under it.
    pub(crate) fn check_share(&self, below: &[Layer], at: &KeyPath) -> SettingsRuleResult {
        if !matches!(below.first(), Some(Layer::Remote(_)))
            || !below[1..].iter().all(Layer::keeps_size)
        {
            let message = "only the volume of a node is shared, as a whole";
            return wrong(at.key("share"), message, "put the cache right above `remote`");
        }
        if !matches!(self.report, WriteMode::AfterComplete | WriteMode::Immediate) {
            let message = "there is nothing to share in this way of reporting";
            return wrong(at.key("report"), message, "use \"after-complete\" or \"immediate\"");
        }
        if self.order != DestageOrder::Strict {
            let message =
                "writes that overtake the log could reach the volume after its token is released";
            return wrong(at.key("order"), message, "leave `order` out");
        }
        if self.on_log_error != LogErrorPolicy::StopWrites {
            let message =
                "writes that bypass the log could reach the volume after its token is released";
            return wrong(at.key("on_log_error"), message, "leave `on_log_error` out");
        }
        Ok(())
    }
}

impl PairPartnerSettings {
    /// Checks the keys that depend on a pair: those of `cache`, at `at`, and those of the pair itself.
    fn check(&self, cache: &CacheLayerSettings, at: &KeyPath) -> SettingsRuleResult {
        let only = |name: &str, holds: bool, message: &str| match holds {
            true => Ok(()),
            false => wrong(at.key(name), message, format!("leave `{name}` out, or `pair`")),
        };
        only(
            "report",
            matches!(cache.report, WriteMode::AfterComplete | WriteMode::Immediate),
            "the partner has only what is in the log",
        )?;
        only(
            "nvram",
            cache.report == WriteMode::Immediate || cache.nvram.is_none(),
            "a pair uses it with report = \"immediate\" alone",
        )?;
        only(
            "order",
            cache.order == DestageOrder::Strict,
            "what overtakes the log is not known to the partner",
        )?;
        let stops = cache.on_log_error == LogErrorPolicy::StopWrites;
        only("on_log_error", stops, "what goes past the log is not known to the partner")?;
        only("share", !cache.share, "the partner does not know what others are granted")?;
        only(
            "log_mirror",
            cache.log_mirror.is_none(),
            "the other half of the log is with the partner",
        )?;
        let at = at.key("pair");
        self.partner.check(&at.key("partner"))?;
        range(&at, "dead_after", self.dead_after, TimeSpan::seconds(1), TimeSpan::seconds(60))
    }
}

/// Checks a size against a range in bytes.
fn sizes(at: &KeyPath, name: &str, size: Size, bytes: &RangeInclusive<u32>) -> SettingsRuleResult {
    range(at, name, size, Size((*bytes.start()).into()), Size((*bytes.end()).into()))
}

/// Checks a time against a range in milliseconds.
fn spans(at: &KeyPath, name: &str, span: TimeSpan, ms: &RangeInclusive<u64>) -> SettingsRuleResult {
    range(at, name, span, TimeSpan::millis(*ms.start()), TimeSpan::millis(*ms.end()))
}

/// Checks the times of the day with other destage rates: each has an end, and a rate that is not too small.
fn rates(at: &KeyPath, rates: &[Hours]) -> SettingsRuleResult {
    for (index, hours) in rates.iter().enumerate() {
        let at = at.key("destage_rates").index(index);
        if hours.from == hours.to {
            let message = format!("it ends when it begins, at {}", hours.to);
            return wrong(at.key("to"), message, "write \"00:00\" to \"24:00\" for a whole day");
        }
        if hours.rate.0 > 0 {
            range(&at, "rate", hours.rate, Size::kib(4), Size(1 << 40))?;
        }
    }
    Ok(())
}
