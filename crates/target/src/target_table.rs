//! The targets of a server, their logical units, and the portal groups through which they are reached.

use std::sync::Arc;

use parking_lot::RwLock;
use scsi::{Lun, Sense};
use unit::{AttentionChange, LogicalUnit, Neighbours, Nexus};

use crate::{
    login_access::LoginAccess,
    portal::{PortalGroup, Redirect},
};

/// A target that a server offers: its name, its logical units and its portal groups.
#[derive(Clone)]
pub struct Target {
    /// The iSCSI name to which initiators log in: `iqn.`, `eui.` or `naa.`.
    pub name: String,
    /// TargetAlias: a description of the target for people to read.
    pub alias: Option<String>,
    /// The logical units of the target, each with its LUN from 0 to 16,383.
    pub units: Vec<(u16, Arc<dyn LogicalUnit>)>,
    /// The portal groups through which initiators reach the target. Each has a tag of its own.
    pub groups: Vec<PortalGroup>,
    /// If set, the server redirects every login to this target to this address.
    pub redirect: Option<Redirect>,
    /// True if the target is temporarily served elsewhere. A login then ends with "service unavailable" (RFC 7143,
    /// 11.13.5); initiators then try again, here or at another portal.
    pub is_unavailable: bool,
    pub access: LoginAccess,
}

impl Target {
    /// A target in the default portal group that admits every initiator.
    #[must_use]
    pub fn new(name: impl Into<String>, units: Vec<(u16, Arc<dyn LogicalUnit>)>) -> Self {
        let groups = vec![PortalGroup::default()];
        let (name, access) = (name.into(), LoginAccess::default());
        Self { name, alias: None, units, groups, redirect: None, is_unavailable: false, access }
    }
}

/// The reason why a server cannot serve a set of targets.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum TargetError {
    /// The name is not one of RFC 7143, 4.2.7: `iqn.`, `eui.` or `naa.` and up to 223 bytes of
    /// lower-case letters, digits, and `-`, `.`, `:`.
    #[error("`{0}` is not an iSCSI name")]
    Name(String),
    #[error("there are two targets `{0}`")]
    Twice(String),
    #[error("target `{name}`: LUN {lun} is used twice or above 16,383")]
    Unit { name: String, lun: u16 },
}

/// The targets of a server by name.
#[derive(Default)]
pub(crate) struct TargetTable {
    targets: RwLock<Vec<Arc<ServedTargetEntry>>>,
}

/// A target that the server offers, with the state that its sessions share.
pub(crate) struct ServedTargetEntry {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) groups: Vec<PortalGroup>,
    pub(crate) redirect: Option<Redirect>,
    pub(crate) is_unavailable: bool,
    access: RwLock<Arc<LoginAccess>>,
    /// The logical units, sorted by LUN.
    units: Vec<(u16, Arc<dyn LogicalUnit>)>,
    /// The LUNs of the target in the format in which REPORT LUNS returns them.
    pub(crate) luns: Vec<Lun>,
    /// The tags of `groups` in ascending order. Each group is one target port (RFC 7143, 4.4.1).
    ports: Vec<u16>,
}

impl ServedTargetEntry {
    pub(crate) fn unit(&self, lun: Lun) -> Option<&Arc<dyn LogicalUnit>> {
        let number = lun.number()?;
        // Check the first unit before the binary search: most targets have one unit, LUN 0.
        let at = match self.units.first() {
            Some((first, _)) if *first == number => 0,
            _ => self.units.binary_search_by_key(&number, |(number, _)| *number).ok()?,
        };
        Some(&self.units[at].1)
    }

    pub(crate) fn access(&self) -> Arc<LoginAccess> {
        self.access.read().clone()
    }

    pub(crate) fn change_access(&self, access: LoginAccess) {
        *self.access.write() = Arc::new(access);
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &dyn LogicalUnit> {
        self.units.iter().map(|(_, unit)| &**unit)
    }

    /// Returns the units of this target that are missing in `other`, or have another LUN there.
    pub(crate) fn units_beyond<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Lun, &'a dyn LogicalUnit)> {
        let is_there = |lun: Lun, unit| other.unit(lun).is_some_and(|x| Arc::ptr_eq(x, unit));
        let units = self.luns.iter().zip(&self.units);
        let beyond = units.filter(move |(lun, (_, unit))| !is_there(**lun, unit));
        beyond.map(|(lun, (_, unit))| (*lun, &**unit))
    }

    /// Returns the LUNs of the units whose sense data must have descriptor format.
    pub(crate) fn descriptor_sense_luns(&self) -> Vec<Lun> {
        let units = self.luns.iter().zip(self.units());
        let limited = units.filter(|(_, unit)| unit.abilities().descriptor_sense_only);
        limited.map(|(lun, _)| *lun).collect()
    }

    /// Raises a unit attention condition for a nexus at every unit.
    pub(crate) fn raise_attention(&self, nexus: &Nexus, condition: Sense) {
        self.units()
            .for_each(|unit| unit.change_attention(nexus, condition, AttentionChange::Raise));
    }

    /// Withdraws a unit attention condition of a nexus at every unit, after one unit has reported the condition, or
    /// after the initiator has learned of the change in another way.
    pub(crate) fn withdraw_attention(&self, nexus: &Nexus, condition: Sense) {
        self.units()
            .for_each(|unit| unit.change_attention(nexus, condition, AttentionChange::Withdraw));
    }
}

impl Neighbours for ServedTargetEntry {
    fn unit(&self, naa: &[u8; 16]) -> Option<Arc<dyn LogicalUnit>> {
        let has_name =
            |unit: &dyn LogicalUnit| unit.abilities().copies.is_some_and(|c| c.naa() == *naa);
        let found = self.units.iter().find(|(_, unit)| has_name(&**unit));
        found.map(|(_, unit)| Arc::clone(unit))
    }

    fn target_ports(&self) -> &[u16] {
        &self.ports
    }
}

impl TargetTable {
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedTargetEntry>> {
        self.targets.read().iter().find(|target| target.name == name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<ServedTargetEntry>> {
        self.targets.read().clone()
    }

    pub(crate) fn add(&self, target: Target) -> Result<(), TargetError> {
        let device = ServedTargetEntry::new(target)?;
        let mut targets = self.targets.write();
        if targets.iter().any(|other| other.name == device.name) {
            return Err(TargetError::Twice(device.name));
        }
        targets.push(Arc::new(device));
        Ok(())
    }

    /// Replaces the target that has the name of `device`. Returns false if there is none.
    pub(crate) fn replace(&self, device: Arc<ServedTargetEntry>) -> bool {
        let mut targets = self.targets.write();
        let found = targets.iter_mut().find(|other| other.name == device.name);
        found.map(|other| *other = device).is_some()
    }

    pub(crate) fn remove(&self, name: &str) {
        self.targets.write().retain(|target| target.name != name);
    }
}

impl ServedTargetEntry {
    pub(crate) fn new(target: Target) -> Result<Self, TargetError> {
        let Target { name, alias, mut units, groups, redirect, is_unavailable, access } = target;
        if !is_iscsi_name(&name) {
            return Err(TargetError::Name(name));
        }
        units.sort_by_key(|(number, _)| *number);
        let mut luns: Vec<Lun> = Vec::with_capacity(units.len());
        for (number, _) in &units {
            let lun = Lun::from_number(*number).filter(|lun| luns.last() != Some(lun));
            let Some(lun) = lun else { return Err(TargetError::Unit { name, lun: *number }) };
            luns.push(lun);
        }
        let access = RwLock::new(Arc::new(access));
        let mut ports: Vec<u16> = groups.iter().map(|group| group.tag).collect();
        ports.sort_unstable();
        ports.dedup();
        Ok(Self { name, alias, groups, redirect, is_unavailable, access, units, luns, ports })
    }
}

fn is_iscsi_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.:".contains(c);
    let has_form = ["iqn.", "eui.", "naa."].iter().any(|form| name.starts_with(form));
    has_form
        && name.len() <= 223
        && name.chars().all(|c| is_allowed(c) || !c.is_ascii() && scsi::is_plain(c))
}
