//! Which targets there are, which units they have, and who may log in.

use std::{collections::HashSet, sync::Arc};

use iscsi::{login::Directory, pdu::LoginStatus};
use scsi::Lun;
use unit::LogicalUnit;

/// A target: a name, and units by number.
pub struct Target {
    /// The iSCSI name, `iqn.`, `eui.` or `naa.`: what initiators log in to.
    pub name: String,
    /// A name for humans.
    pub alias: Option<String>,
    /// Units by LUN, 0 to 16,383.
    pub units: Vec<(u16, Arc<dyn LogicalUnit>)>,
}

/// Targets that cannot be served together.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// The name is not one of RFC 7143, 4.2.7: `iqn.`, `eui.` or `naa.` and up to 223 bytes of
    /// lower-case letters, digits, and `-`, `.`, `:`.
    #[error("`{0}` is not an iSCSI name")]
    Name(String),
    /// Two targets with one name.
    #[error("there are two targets `{0}`")]
    Twice(String),
    /// Two units with one number, or a number above 16,383.
    #[error("target `{name}`: LUN {lun} is there twice or above 16,383")]
    Unit {
        /// The target.
        name: String,
        /// The unit's number.
        lun: u16,
    },
}

/// The portal group of all portals: they all lead to the same sessions.
pub(crate) const PORTAL_GROUP: u16 = 1;

/// Targets that were found to fit together.
pub(crate) struct Names {
    targets: Vec<Arc<Device>>,
}

/// A target as its sessions see it.
pub(crate) struct Device {
    pub(crate) name: String,
    alias: Option<String>,
    /// Sorted by number.
    units: Vec<(u16, Arc<dyn LogicalUnit>)>,
    /// Their LUNs as REPORT LUNS lists them.
    pub(crate) luns: Vec<Lun>,
}

impl Device {
    /// The unit that `lun` names.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&dyn LogicalUnit> {
        let number = lun.number()?;
        // Most targets have one unit, number 0.
        let at = match self.units.first() {
            Some((first, _)) if *first == number => 0,
            _ => self.units.binary_search_by_key(&number, |(number, _)| *number).ok()?,
        };
        Some(&*self.units[at].1)
    }

    /// All units.
    pub(crate) fn units(&self) -> impl Iterator<Item = &dyn LogicalUnit> {
        self.units.iter().map(|(_, unit)| &**unit)
    }
}

impl Names {
    pub(crate) fn new(targets: Vec<Target>) -> Result<Self, TargetError> {
        let mut seen = HashSet::new();
        let mut devices = Vec::with_capacity(targets.len());
        for target in targets {
            if !is_iscsi_name(&target.name) {
                return Err(TargetError::Name(target.name));
            }
            if !seen.insert(target.name.clone()) {
                return Err(TargetError::Twice(target.name));
            }
            devices.push(Arc::new(Device::new(target)?));
        }
        Ok(Self { targets: devices })
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Arc<Device>> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// The names that `initiator` may see: today, all.
    pub(crate) fn visible(&self, _initiator: &str) -> impl Iterator<Item = &str> {
        self.targets.iter().map(|target| target.name.as_str())
    }
}

impl Device {
    fn new(target: Target) -> Result<Self, TargetError> {
        let Target { name, alias, mut units } = target;
        units.sort_by_key(|(number, _)| *number);
        let mut luns: Vec<Lun> = Vec::with_capacity(units.len());
        for (number, _) in &units {
            let lun = Lun::from_number(*number).filter(|lun| luns.last() != Some(lun));
            let Some(lun) = lun else { return Err(TargetError::Unit { name, lun: *number }) };
            luns.push(lun);
        }
        Ok(Self { name, alias, units, luns })
    }
}

impl Directory for Names {
    fn admit(&self, _initiator: &str, target: Option<&str>) -> Result<u16, LoginStatus> {
        match target {
            Some(name) if self.find(name).is_none() => Err(LoginStatus::NotFound),
            _ => Ok(PORTAL_GROUP),
        }
    }

    fn alias(&self, target: &str) -> Option<String> {
        self.find(target)?.alias.clone()
    }
}

fn is_iscsi_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    let has_form = ["iqn.", "eui.", "naa."].iter().any(|form| name.starts_with(form));
    has_form && name.len() <= 223 && name.chars().all(|c| is_allowed(c) || !c.is_ascii())
}
