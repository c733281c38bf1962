//! The layer `slice`: a range of the volume below.

use serde::Deserialize;

use super::reload::LayerChange;
use crate::{
    byte_range::ByteRange,
    problem::KeyPath,
    quantity::Size,
    rule::{SettingsRuleResult, whole},
};

#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Slice {
    /// First byte of the slice, a multiple of the logical block size.
    pub start: Size,
    /// Length in bytes. If left out: up to the end of the layer below. Slices of one file must not overlap.
    pub size: Option<Size>,
}

impl Slice {
    pub(crate) fn check(&self, at: &KeyPath) -> SettingsRuleResult {
        whole(at, "start", Some(Size(self.start.0.max(512))), Size(512))?;
        whole(at, "size", self.size, Size(512))
    }

    /// Returns the bytes of the layer below that the slice covers.
    pub fn range(&self) -> ByteRange {
        ByteRange::new(self.start.0, self.size.map(|size| size.0))
    }

    /// Adopts the size in `new` if it is larger and both settings specify a size.
    pub(super) fn reload(&mut self, new: &Self) -> LayerChange {
        match (self.size, new.size) {
            (Some(_), Some(_)) => LayerChange::of_size("slice", &mut self.size, new.size),
            _ => LayerChange::None,
        }
    }
}
