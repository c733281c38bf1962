//! The description of a moved volume, which the source node sends to the destination: all properties by which hosts
//! recognise it.

use std::path::PathBuf;

use ::names::{MOST_COUNT, VolumeName};
use config::{
    Allow, File, IscsiName, IscsiTargetSettings, Layer, Unit, UnitKind,
    quantity::{Size, TimeSpan},
};
use control::Failure;
use serde::{Deserialize, Serialize};
use unit::UnitIdentity;
use volume::Volume;

use super::access_rules::TargetAccessRules;

/// The properties of a volume and its unit that are the same at every node.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Described {
    pub volume: VolumeName,
    /// Generation of the volume after the move: the number of its moves, including this one.
    pub generation: u64,
    /// The iSCSI name of the target that serves the volume.
    pub target: String,
    /// The human-readable name of the target.
    pub alias: Option<String>,
    pub lun: u16,
    pub serial: String,
    product: String,
    removable: bool,
    soft_threshold: Option<f64>,
    physical_block_size: Option<u64>,
    write_same_to_end: bool,
    spc: u8,
    reads_beside_claim: bool,
    share_grain: Option<u64>,
    share_lease_ms: u64,
    /// Block size in bytes.
    pub block_size: u32,
    pub blocks: u64,
    /// Estimated number of bytes to copy.
    pub used_bytes: u64,
    #[serde(default)]
    pub access: TargetAccessRules,
}

impl Described {
    /// Describes the unit for a move, with the access rules of its target and its serial number.
    pub fn new(
        (target, access): (&IscsiTargetSettings, TargetAccessRules),
        unit: &Unit,
        serial: &str,
        lower: &dyn Volume,
    ) -> Option<Self> {
        let geometry = lower.geometry();
        Some(Self {
            volume: unit.volume.clone()?,
            generation: unit.generation.saturating_add(1),
            target: target.name.0.clone(),
            alias: target.alias.clone(),
            lun: unit.lun,
            serial: serial.to_owned(),
            product: unit.product.clone(),
            removable: unit.removable,
            soft_threshold: unit.soft_threshold,
            physical_block_size: unit.physical_block_size.map(|size| size.0),
            write_same_to_end: unit.write_same_to_end,
            spc: unit.spc,
            reads_beside_claim: unit.reads_beside_claim,
            share_grain: unit.share_grain.map(|grain| grain.0),
            share_lease_ms: unit.share_lease.0.as_millis() as u64,
            block_size: geometry.block_size,
            blocks: geometry.blocks,
            used_bytes: lower.extensions().usage().map_or(geometry.bytes(), |usage| usage.used),
            access,
        })
    }

    /// Returns the length of the volume in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(u64::from(self.block_size))
    }

    pub fn identity(&self) -> UnitIdentity {
        UnitIdentity::new(&self.serial).with_target(&self.target)
    }

    /// Checks the description of a volume that another node has sent.
    pub fn check(&self) -> Result<(), Failure> {
        let name = serde_json::Value::String(self.target.clone());
        let printable = |text: &str| text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
        let is_right = serde_json::from_value::<IscsiName>(name).is_ok()
            && self.lun < 16_384
            && (1..MOST_COUNT).contains(&self.generation)
            && (1..=36).contains(&self.serial.len())
            && self.product.len() <= 16
            && printable(&self.serial)
            && printable(&self.product)
            && self.alias.as_ref().is_none_or(|alias| alias.len() <= 255)
            && [512, 4096].contains(&self.block_size)
            && self.blocks > 0
            && self.blocks.checked_mul(self.block_size.into()).is_some_and(|b| b < 1 << 60)
            && [3, 4].contains(&self.spc)
            && (1_000..=3_600_000).contains(&self.share_lease_ms)
            && self.soft_threshold.is_none_or(|share| (0.01..=1.0).contains(&share))
            && self
                .physical_block_size
                .is_none_or(|s| (512..=4096).contains(&s) && s.is_power_of_two())
            && self
                .share_grain
                .is_none_or(|g| (64 << 10..=1 << 30).contains(&g) && g.is_power_of_two());
        is_right.then_some(()).ok_or_else(|| {
            Failure::new(format!("the description of the volume {} is invalid", self.volume))
                .remedy("use the same version of forebay on both nodes")
        })
    }

    /// Returns settings of a unit that serves the volume from `file`.
    pub fn unit(&self, file: PathBuf) -> Unit {
        let block_size = Size(u64::from(self.block_size));
        Unit {
            lun: self.lun,
            // Only block devices can move, so the unit is one.
            kind: UnitKind::Block,
            object: None,
            volume: Some(self.volume.clone()),
            generation: self.generation,
            serial: Some(self.serial.clone()),
            product: self.product.clone(),
            removable: self.removable,
            soft_threshold: self.soft_threshold,
            physical_block_size: self.physical_block_size.map(Size),
            write_same_to_end: self.write_same_to_end,
            spc: self.spc,
            reads_beside_claim: self.reads_beside_claim,
            share_grain: self.share_grain.map(Size),
            share_lease: TimeSpan::millis(self.share_lease_ms),
            stack: vec![Layer::File(File { path: file, block_size, ..File::default() })],
        }
    }

    /// Returns the settings of a target whose only unit serves the volume from `file`.
    pub fn served(&self, file: PathBuf, allow: Option<Vec<Allow>>) -> IscsiTargetSettings {
        IscsiTargetSettings {
            name: IscsiName(self.target.clone()),
            alias: self.alias.clone(),
            allow,
            unit: vec![self.unit(file)],
            ..IscsiTargetSettings::default()
        }
    }
}
