//! Which targets there are, which units they have, and through which portal groups they are reached.

use std::sync::Arc;

use parking_lot::RwLock;
use scsi::{Lun, Sense};
use unit::{AttentionChange, LogicalUnit, Neighbours, Nexus};

use crate::{
    login_access::LoginAccess,
    portal::{PortalGroup, Redirect},
};

/// A target: a name, and units by number.
#[derive(Clone)]
pub struct Target {
    /// The iSCSI name, `iqn.`, `eui.` or `naa.`: what initiators log in to.
    pub name: String,
    /// A name for humans.
    pub alias: Option<String>,
    /// Units by LUN, 0 to 16,383.
    pub units: Vec<(u16, Arc<dyn LogicalUnit>)>,
    /// The portal groups through which it is reached, each with a tag of its own.
    pub groups: Vec<PortalGroup>,
    /// Everybody who logs in to it is sent there.
    pub redirect: Option<Redirect>,
    /// It is served elsewhere for now: a login ends with "service unavailable" (RFC 7143, 11.13.5), after
    /// which initiators try again, here or by another portal.
    pub is_unavailable: bool,
    /// Who may log in to it.
    pub access: LoginAccess,
}

impl Target {
    /// A target in the default portal group, for everybody.
    #[must_use]
    pub fn new(name: impl Into<String>, units: Vec<(u16, Arc<dyn LogicalUnit>)>) -> Self {
        let groups = vec![PortalGroup::default()];
        let (name, access) = (name.into(), LoginAccess::default());
        Self { name, alias: None, units, groups, redirect: None, is_unavailable: false, access }
    }
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

/// The targets of a server.
#[derive(Default)]
pub(crate) struct TargetTable {
    targets: RwLock<Vec<Arc<ServedTargetEntry>>>,
}

/// A target as its sessions see it.
pub(crate) struct ServedTargetEntry {
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) groups: Vec<PortalGroup>,
    pub(crate) redirect: Option<Redirect>,
    pub(crate) is_unavailable: bool,
    access: RwLock<Arc<LoginAccess>>,
    /// Sorted by number.
    units: Vec<(u16, Arc<dyn LogicalUnit>)>,
    /// Their LUNs as REPORT LUNS lists them.
    pub(crate) luns: Vec<Lun>,
    /// The tags of `groups`, ascending: each group is one port (RFC 7143, 4.4.1).
    ports: Vec<u16>,
}

impl ServedTargetEntry {
    /// The unit that `lun` names.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&Arc<dyn LogicalUnit>> {
        let number = lun.number()?;
        // Most targets have one unit, number 0.
        let at = match self.units.first() {
            Some((first, _)) if *first == number => 0,
            _ => self.units.binary_search_by_key(&number, |(number, _)| *number).ok()?,
        };
        Some(&self.units[at].1)
    }

    /// Who may log in.
    pub(crate) fn access(&self) -> Arc<LoginAccess> {
        self.access.read().clone()
    }

    pub(crate) fn change_access(&self, access: LoginAccess) {
        *self.access.write() = Arc::new(access);
    }

    /// All units.
    pub(crate) fn units(&self) -> impl Iterator<Item = &dyn LogicalUnit> {
        self.units.iter().map(|(_, unit)| &**unit)
    }

    /// The units that `other` has not, or not by this number.
    pub(crate) fn units_beyond<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (Lun, &'a dyn LogicalUnit)> {
        let is_there = |lun: Lun, unit| other.unit(lun).is_some_and(|x| Arc::ptr_eq(x, unit));
        let units = self.luns.iter().zip(&self.units);
        let beyond = units.filter(move |(lun, (_, unit))| !is_there(**lun, unit));
        beyond.map(|(lun, (_, unit))| (*lun, &**unit))
    }

    /// Tells a nexus something at every unit.
    pub(crate) fn raise_attention(&self, nexus: &Nexus, condition: Sense) {
        self.units()
            .for_each(|unit| unit.change_attention(nexus, condition, AttentionChange::Raise));
    }

    /// A nexus has been told of this at one of the units, or has asked.
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

    /// Takes the place of the target of this name; false if there is none.
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
