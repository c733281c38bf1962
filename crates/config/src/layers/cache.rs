//! The layer `cache`: the write-back cache of a gateway, or of a storage node over its own disk.

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

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct CacheLayerSettings {
    /// Log disk: a file or a block device of its own. It is the only place of acknowledged data that has not reached
    /// the far volume, so losing it loses that data: use storage that survives the failures you plan for. Required.
    pub log: PathBuf,
    /// Size in bytes of a new log, 8 MiB to 16 TiB. Rule of thumb: write rate times the longest outage of the far
    /// volume (64 GiB hold an hour at 18 MB/s). An existing log keeps its size; `forebay gateway log-resize` changes
    /// it.
    pub log_size: Option<Size>,
    /// Second file or device of the same size that holds the same content, best on another disk. Either leg of this
    /// mirror may be lost: `log_halves` in the status shows both, and `forebay gateway renew` fills a replaced one. A
    /// write waits for the slower leg. A log made without a mirror cannot get one later.
    pub log_mirror: Option<PathBuf>,
    /// If true, a mirrored log starts with one leg even though the missing leg may have newer writes, which are then
    /// lost. Before that start, unmount the volume at every host: its content may be older afterwards, and a file
    /// system that is still mounted would be damaged. Set it for one start, when the other leg is permanently lost,
    /// and remove it afterwards.
    pub log_degraded: bool,
    /// Rate in bytes per second at which dirty data in the log is read and verified every ten minutes, to find
    /// corruption early; at most 1 TiB. 0 disables the scrub. A corrupt block is repaired from the other leg of a
    /// mirror (`log_mended` in the status counts them); `rotten_slots` counts those that no leg can return.
    pub log_scrub: Size,
    /// File with the key that encrypts the volume's data in the log and the NVRAM (AES-256-GCM), made with `forebay key
    /// FILE --secret-file SECRET`. Without key and secret all dirty data is lost: keep a copy elsewhere. A log changes
    /// its key only when it is empty.
    pub log_key: Option<PathBuf>,
    /// File with the secret that unwraps `log_key`. Required with `log_key`. `forebay secret FILE --characters 64`
    /// makes one; keep a copy apart from the log.
    pub log_secret_file: Option<PathBuf>,
    /// The other gateway of a pair, which holds the second mirror leg of the log and takes over:
    /// `[target.unit.stack.cache.pair]`. If left out: no pair.
    pub pair: Option<Box<PairPartnerSettings>>,
    /// I/O engine of the log: "auto", "uring" or "threads", as `engine` of a `file` layer.
    pub log_engine: FileEngineSetting,
    /// If true, the log bypasses the page cache (O_DIRECT) where the file system supports it, as `direct` of a `file`
    /// layer.
    pub log_direct: bool,
    /// NVRAM file, required for `report = "immediate"`. Its location decides which failures acknowledged writes
    /// survive. On tmpfs or a disk's file system: a killed process. On persistent memory (DAX): also a power loss, if
    /// `nvram_survives` says so.
    pub nvram: Option<PathBuf>,
    /// Failures that the NVRAM survives: "restart" (of the process) or "power-loss", on persistent (DAX) or
    /// battery-backed memory only. A wrong claim loses acknowledged writes: Forebay cannot verify it. With "power-loss"
    /// and immediate report, flushes and FUA writes do not wait for the log disk. If msync fails, writes wait for it
    /// until the next start (`nvram_error`). May change at any restart.
    pub nvram_survives: NvramSurvival,
    /// Maximum number of bytes that wait for the log disk, and size of the NVRAM: 64 KiB up to half of `dram`. Both
    /// gateways of a pair need the same value.
    pub nvram_size: Size,
    /// Size in bytes of the read cache in memory, 1 MiB to 4 TiB, allocated at the start. Make it as large as the data
    /// that hosts read often, and leave memory for the system. New data passes through a tenth of it (S3-FIFO), so a
    /// backup does not displace data that is read often.
    pub dram: Size,
    /// When a write is acknowledged: "after-complete" (stable in the log), "immediate" (in NVRAM), "through" (stable on
    /// the far volume), "around" (as "through", not cached) or "at-flush" (at once; stable at the next flush; only for
    /// a node's own disk, where writes between two flushes survive a crash all or not at all).
    pub report: WriteMode,
    /// "strict": no write overtakes those in the log, so the far volume is a consistent prefix between destage rounds,
    /// and always if its node has report "at-flush"; at a full log writes wait. "relaxed": writes to a full log, and
    /// discards above 4 MiB, bypass it; if the log is then lost, the far volume is an inconsistent mixture.
    pub order: DestageOrder,
    /// For `report = "at-flush"`: behavior when more data than about half the log arrives between two flushes.
    /// "refuse": writes fail until a flush (`refused_epochs` in the status). "split": the data so far becomes stable
    /// without the rest (`split_epochs`). A gateway above this node keeps its rounds below the limit.
    pub epoch_too_large: OversizedEpoch,
    /// Behavior of writes while the log disk fails (`log_error` in the status). "stop-writes": they fail.
    /// "write-through": they go to the far volume and are stable there before they are acknowledged. A write to blocks
    /// with dirty data in the log still fails. At a node with epochs, a write waits up to 5 s for a running destage
    /// round, then gets BUSY.
    pub on_log_error: LogErrorPolicy,
    /// Fill level of the log, 0.05 to 0.9, above which destage no longer waits for idle moments. A low value keeps the
    /// log emptier; a high value lets hosts use the link first.
    pub destage_threshold: f64,
    /// Time without requests after which destage treats the gateway as idle, 1ms to 1min.
    pub destage_idle: TimeSpan,
    /// Maximum length in bytes of a destage write, 4 KiB to 1 MiB. Adjacent dirty blocks are joined up to it; on links
    /// that hold more than 64 such writes, up to 256 KiB.
    pub destage_run: Size,
    /// Maximum number of destage writes of full length in flight, 1 to 2048. The cache measures how many fill the link
    /// and stays below this bound, and below three quarters of the `queue_depth` of the `remote` layer for writes of
    /// any length. 1 sends one write at a time.
    pub destage_in_flight: u16,
    /// Maximum destage rate in bytes per second, 4 KiB to 1 TiB; `forebay reload` changes it while the unit is served.
    /// It also applies to old data, to a full log and to `forebay gateway drain`, so the log must hold the excess. It
    /// does not limit reads or writes that bypass the log. If left out: the rate of the link.
    pub destage_rate: Option<Size>,
    /// Other destage rates for hours of the day, in local time (TZ, /etc/localtime). The first matching entry applies.
    /// A `to` before `from` means the next day. A `rate` of 0 sends nothing in these hours, and the log must hold their
    /// writes. `forebay reload` changes them while the unit is served.
    pub destage_rates: Vec<Hours>,
    /// Maximum age of dirty data, 1ms to 24h: older data is destaged even if requests never pause. It bounds how far
    /// the far volume lags behind while the link is fast enough.
    pub dirty_age: TimeSpan,
    /// How long a write waits for space in a full log before the host gets BUSY, 0s (at once) to 25s; nothing is
    /// written then. Hosts abort commands after about 30 s. With 0s, QEMU reports I/O errors to its guest within
    /// seconds.
    pub busy_after: TimeSpan,
    /// Second read tier: a local file or block device of its own for clean data that leaves memory, written in segments
    /// of 512 KiB. It never holds the only copy and starts empty. After a failure, or 2 s without an answer, it is off
    /// until the next start (`tier_error`). A tier of another log, or other content, is refused.
    pub read_tier: Option<PathBuf>,
    /// Size in bytes of the read tier, 1 MiB to 16 TiB, for a file that does not exist yet. An existing file keeps its
    /// size: remove it to get another. Each 4 KiB in use takes 20 bytes of memory, 32 with `log_key` (500 or 800 MiB
    /// for 100 GiB).
    pub read_tier_size: Option<Size>,
    /// Maximum number of bytes read ahead for one sequential reader, 0 (none) to 512 MiB. The cache reads ahead as much
    /// as the reader consumes during two fetches; 32 MiB suffice for 1 Gbit/s at 50 ms one way. Data not used yet takes
    /// at most an eighth of `dram`. If most is never used, only long streams are read ahead.
    pub read_ahead: Size,
    /// If true, other gateways cache the same volume and coherence tokens keep them consistent. Requires `share_grain`
    /// at the node, a log and an `initiator_name` for each gateway, and `report` "after-complete" or "immediate". The
    /// gateway then needs its node to start, and supports no reservations.
    pub share: bool,
    /// If true, a damaged log is used although acknowledged writes are missing from it: these writes are lost. Before
    /// that start, unmount the volume at every host: its content is older afterwards, and a file system that is still
    /// mounted would be damaged. Set it for one start, after `forebay check` has reported what is missing, and remove
    /// it afterwards. Requires `hosts_unmounted`.
    pub accept_loss: bool,
    /// States that all hosts have unmounted the volume: a host that has it mounted reconnects to the older content and
    /// damages its file system. Set it with `accept_loss`, and remove both after the start.
    pub hosts_unmounted: bool,
    /// True if the log was brought here on purpose and its former gateway is fenced. A settings file cannot set this,
    /// because it is valid for one start only.
    #[serde(skip)]
    pub takes_over: bool,
    /// Folder for the record of the log's confirmed writes. The program sets it; a settings file cannot.
    #[serde(skip)]
    pub state: Option<PathBuf>,
    /// Path of the settings file, for commands in messages. The program sets it.
    #[serde(skip)]
    pub config: PathBuf,
}

/// The table `[target.unit.stack.cache.pair]`: the other gateway of a pair.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PairPartnerSettings {
    /// Unit under which the partner serves its mirror leg of the log, with the keys of a `remote` layer. Required.
    pub partner: RemoteLayerSettings,
    /// Time without an answer after which the partner counts as failed, 1s to 60s; it is also the longest time for
    /// which a silent partner delays writes. Short values fail over sooner, but then a brief outage of the link makes
    /// the pair degraded. If left out: 3s.
    pub dead_after: TimeSpan,
    /// If true, this gateway serves the unit when both could. Set it at exactly one of the two. If left out: false.
    pub first: bool,
}

impl Default for CacheLayerSettings {
    /// Takes the defaults of the crate `cache` for all keys that this crate also has.
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
            hosts_unmounted: false,
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
    /// Returns settings with which the log's key is opened like that of an `encrypt` layer; `None` if the log is not
    /// encrypted.
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

    /// Takes over from `new` the destage rates, the only keys that a reload may change.
    pub(super) fn reload(&mut self, new: &Self) -> LayerChange {
        if self.schedule() == new.schedule() {
            return LayerChange::None;
        }
        self.destage_rate = new.destage_rate;
        self.destage_rates.clone_from(&new.destage_rates);
        LayerChange::Other("its destage rate".to_owned())
    }

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
        if self.accept_loss && !self.hosts_unmounted {
            return wrong(
                at.key("accept_loss"),
                "it is not stated that all hosts have unmounted the volume; a host that has it mounted reconnects to \
                 the older content and damages its file system",
                "unmount the volume at every host and log out there, then add `hosts_unmounted = true` for this start",
            );
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
                return wrong(
                    at.key("log_key"),
                    "there is no secret that unwraps this key",
                    remedy,
                );
            }
        } else if self.log_secret_file.is_some() {
            let message = "there is a secret, but no key that it unwraps";
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
                "immediate report needs NVRAM, but `nvram` is missing",
                "add `nvram = \"FILE\"` on storage that survives the failures you plan for, or \
                 use \"after-complete\"",
            );
        }
        if self.nvram_survives == NvramSurvival::PowerLoss && self.nvram.is_none() {
            let message = "there is no NVRAM that could survive a power loss";
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
            let message = "there is a size of a read tier, but no `read_tier`";
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

    /// Refuses keys that let writes overtake the log. With `report = "at-flush"`, all writes between two flushes become
    /// stable together or not at all, and a write that overtakes the log would break that.
    fn check_at_flush(&self, at: &KeyPath) -> SettingsRuleResult {
        if self.order != DestageOrder::Strict {
            return wrong(
                at.key("order"),
                "writes that overtake the log would not become stable together with the others of \
                 their flush",
                "leave `order` out, or use another `report`",
            );
        }
        if self.on_log_error != LogErrorPolicy::StopWrites {
            return wrong(
                at.key("on_log_error"),
                "writes that bypass the log would not become stable together with the others of \
                 their flush",
                "leave `on_log_error` out, or use another `report`",
            );
        }
        Ok(())
    }

    /// Checks the keys of a cache whose volume other gateways change, too. `below` holds the layers under the cache.
    pub(crate) fn check_share(&self, below: &[Layer], at: &KeyPath) -> SettingsRuleResult {
        if !matches!(below.first(), Some(Layer::Remote(_)))
            || !below[1..].iter().all(Layer::keeps_size)
        {
            let message = "only a whole volume of a node can be shared";
            return wrong(at.key("share"), message, "put the cache right above `remote`");
        }
        if !matches!(self.report, WriteMode::AfterComplete | WriteMode::Immediate) {
            let message = "a shared volume needs another `report`";
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
            "the partner has only the data in the log",
        )?;
        only(
            "nvram",
            cache.report == WriteMode::Immediate || cache.nvram.is_none(),
            "a pair uses NVRAM only with report = \"immediate\"",
        )?;
        only(
            "order",
            cache.order == DestageOrder::Strict,
            "the partner does not get writes that overtake the log",
        )?;
        let stops = cache.on_log_error == LogErrorPolicy::StopWrites;
        only("on_log_error", stops, "the partner does not get writes that bypass the log")?;
        only(
            "share",
            !cache.share,
            "the partner does not have the coherence tokens of this gateway",
        )?;
        only(
            "log_mirror",
            cache.log_mirror.is_none(),
            "the partner has the other mirror leg of the log",
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

/// Checks `destage_rates`: each entry must end at another time than it starts, and its rate must be 0 or at least 4
/// KiB/s.
fn rates(at: &KeyPath, rates: &[Hours]) -> SettingsRuleResult {
    for (index, hours) in rates.iter().enumerate() {
        let at = at.key("destage_rates").index(index);
        if hours.from == hours.to {
            let message = format!("`to` equals `from`, {}", hours.to);
            return wrong(at.key("to"), message, "write \"00:00\" to \"24:00\" for a whole day");
        }
        if hours.rate.0 > 0 {
            range(&at, "rate", hours.rate, Size::kib(4), Size(1 << 40))?;
        }
    }
    Ok(())
}
