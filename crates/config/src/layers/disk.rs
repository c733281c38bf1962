//! The layer `disk`: imitates the service times of a disk, for tests. Data goes to the layer below at once.

use serde::Deserialize;
use volume::Profile;

use crate::{
    problem::KeyPath,
    quantity::{Size, TimeSpan},
    rule::{SettingsRuleResult, range, required, wrong},
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DiskLayerSettings {
    /// Disk model whose values apply to all keys that are left out: "null" (no time), "ibm-dnes", "ibm-ddys", "array",
    /// "ibm-07n3200", "maxtor-as010a1" or "sun18g". Required.
    pub model: String,
    /// Size in bytes of the disk's write cache. The cache acknowledges writes while it has room; a full one makes
    /// writes wait for the medium. 0: no cache, every write waits.
    pub cache: Option<Size>,
    /// If true, the cache keeps its data without power, so flushes and FUA writes do not wait for the medium.
    pub cache_protected: Option<bool>,
    /// Number of accesses that the disk executes concurrently, 1 to 64.
    pub arms: Option<u16>,
    /// Time of seek and rotation before each read, at most 10s.
    pub read_position: Option<TimeSpan>,
    /// Time of seek and rotation before each write, at most 10s.
    pub write_position: Option<TimeSpan>,
    /// Maximum share, 0 to 1, by which these two times vary at random: 0.5 gives half to one and a half times the
    /// value.
    pub spread: f64,
    /// Seed of the random variation. The same seed gives the same sequence of times.
    pub seed: u64,
    /// Transfer rate of the medium in bytes per second, at least 100 KiB.
    pub media_rate: Option<Size>,
    /// Transfer rate of the interface in bytes per second, at least 100 KiB.
    pub bus_rate: Option<Size>,
}

impl DiskLayerSettings {
    /// Returns the properties of the disk, or `None` if the model is unknown.
    pub fn profile(&self) -> Option<Profile> {
        let model = Profile::named(&self.model)?;
        Some(Profile {
            cache: self.cache.map_or(model.cache, |size| size.0),
            cache_protected: self.cache_protected.unwrap_or(model.cache_protected),
            arms: self.arms.map_or(model.arms, usize::from),
            read_position: self.read_position.map_or(model.read_position, |span| span.0),
            write_position: self.write_position.map_or(model.write_position, |span| span.0),
            spread: self.spread,
            seed: self.seed,
            media_rate: self.media_rate.map_or(model.media_rate, |rate| rate.0),
            bus_rate: self.bus_rate.map_or(model.bus_rate, |rate| rate.0),
            ..model
        })
    }

    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "model", self.model.is_empty(), "\"ibm-dnes\"")?;
        if self.profile().is_none() {
            let message = format!("there is no model {:?}", self.model);
            let remedy = format!("write one of {}", Profile::NAMES.join(", "));
            return wrong(at.key("model"), message, &remedy);
        }
        // Upper bound: no disk takes longer, and no caller could wait longer.
        let longest = TimeSpan::seconds(10);
        for (key, span) in
            [("read_position", self.read_position), ("write_position", self.write_position)]
        {
            range(at, key, span.unwrap_or_default(), TimeSpan::default(), longest)?;
        }
        // At the smallest rate, the longest command of a host (16 MiB) takes less than three minutes.
        let slowest = Size::kib(100);
        for (key, rate) in [("media_rate", self.media_rate), ("bus_rate", self.bus_rate)] {
            range(at, key, rate.unwrap_or(slowest), slowest, Size(1 << 40))?;
        }
        range(at, "arms", self.arms.unwrap_or(1), 1, 64)?;
        range(at, "cache", self.cache.unwrap_or_default(), Size(0), Size(1 << 40))?;
        if !(0.0..=1.0).contains(&self.spread) {
            return wrong(at.key("spread"), "not between 0 and 1", "write a share such as 0.5");
        }
        Ok(())
    }
}
