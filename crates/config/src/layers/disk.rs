//! The layer `disk`: the service times of a disk, for trials.

use serde::Deserialize;
use volume::Profile;

use crate::{
    problem::KeyPath,
    quantity::{Size, TimeSpan},
    rule::{SettingsRuleResult, range, required, wrong},
};

/// Settings of a disk layer. Keys that are left out have the value of the model.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct DiskLayerSettings {
    /// The model of the disk: "null" (no time), "ibm-dnes", "ibm-ddys", "array", "ibm-07n3200", "maxtor-as010a1" or
    /// "sun18g". Keys that are left out have the value of the model. Required.
    pub model: String,
    /// Size of its cache in bytes, which acknowledges writes while it has room; 0 for none: writes wait for the
    /// medium.
    pub cache: Option<Size>,
    /// Whether the cache keeps its data without power. Otherwise a flush and FUA wait for the medium.
    pub cache_protected: Option<bool>,
    /// Number of concurrent accesses, 1 to 64.
    pub arms: Option<u16>,
    /// Time of seek and rotation before a read.
    pub read_position: Option<TimeSpan>,
    /// Time of seek and rotation before a write.
    pub write_position: Option<TimeSpan>,
    /// Maximum share by which this time is longer or shorter at random, 0 to 1.
    pub spread: f64,
    /// The seed of the random variation.
    pub seed: u64,
    /// Media rate in bytes per second.
    pub media_rate: Option<Size>,
    /// Interface rate in bytes per second.
    pub bus_rate: Option<Size>,
}

impl DiskLayerSettings {
    /// Returns the properties of the disk; `None` if the model is unknown.
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

    /// Checks the keys at `at`.
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        required(at, "model", self.model.is_empty(), "\"ibm-dnes\"")?;
        if self.profile().is_none() {
            let message = format!("there is no model {:?}", self.model);
            let remedy = format!("write one of {}", Profile::NAMES.join(", "));
            return wrong(at.key("model"), message, &remedy);
        }
        // Upper bounds: no disk has more, and no caller could wait longer.
        let longest = TimeSpan::seconds(10);
        for (key, span) in
            [("read_position", self.read_position), ("write_position", self.write_position)]
        {
            range(at, key, span.unwrap_or_default(), TimeSpan::default(), longest)?;
        }
        // The smallest allowed rate sends a frame of 16 MiB, the largest one, within minutes.
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
