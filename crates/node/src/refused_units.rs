//! Units of the settings that are not served, because their storage does not agree with its record. The
//! settings in force do not contain them.

use std::sync::Arc;

use config::{IscsiTargetSettings, Settings, Unit};
use control::{Failure, RefusedStatus, UnitName};

use super::Node;

#[derive(Clone)]
pub(super) struct RefusedUnit {
    pub(super) unit: UnitName,
    pub(super) failure: Failure,
}

impl Node {
    /// Records that a unit is not served. If it belongs to a common cache, records this for all units of the cache,
    /// because they can only be opened together.
    pub(super) fn refuse(
        &self,
        settings: &Settings,
        target: &IscsiTargetSettings,
        unit: &Unit,
        failure: &Failure,
    ) {
        let units = match unit.in_common() {
            Some(common) => settings.units_of(common),
            None => vec![(target, unit)],
        };
        let mut inner = self.inner.lock();
        for (target, unit) in units {
            let unit = name_of(target, unit);
            inner.refused.push(RefusedUnit { unit, failure: failure.clone() });
        }
    }

    pub(super) fn is_refused(&self, target: &IscsiTargetSettings, unit: &Unit) -> bool {
        let name = name_of(target, unit);
        self.inner.lock().refused.iter().any(|refused| refused.unit == name)
    }

    /// Removes the refused units from settings that are to be in force.
    pub(super) fn leave_out_refused(&self, settings: &mut Settings) {
        leave_out(settings, &self.inner.lock().refused);
    }

    /// Removes the refused units from the settings in force at the end of a start. Fails if no target has a unit or a
    /// redirect left.
    pub(super) fn settle_refused(&self, settings: &Settings) -> Result<(), Failure> {
        let mut in_force = settings.clone();
        self.leave_out_refused(&mut in_force);
        let mut inner = self.inner.lock();
        let serves =
            |target: &IscsiTargetSettings| !target.unit.is_empty() || target.redirect.is_some();
        if let Some(first) = inner.refused.first()
            && !in_force.target.iter().any(serves)
        {
            return Err(first.failure.clone());
        }
        for RefusedUnit { unit, failure } in &inner.refused {
            tracing::error!(%unit, %failure, "the unit is not served");
        }
        inner.settings = Arc::new(in_force);
        Ok(())
    }

    pub(super) fn refused_of(refused: &[RefusedUnit], target: &str) -> Vec<RefusedStatus> {
        let its = refused.iter().filter(|refused| refused.unit.target == target);
        its.map(|refused| RefusedStatus {
            lun: refused.unit.lun,
            message: refused.failure.message.clone(),
            remedy: refused.failure.remedy.clone(),
        })
        .collect()
    }
}

pub(super) fn leave_out(settings: &mut Settings, refused: &[RefusedUnit]) {
    for target in &mut settings.target {
        let name = &target.name.0;
        let is_refused = |unit: &Unit| {
            let is_it = |refused: &RefusedUnit| {
                (&refused.unit.target, refused.unit.lun) == (name, unit.lun)
            };
            refused.iter().any(is_it)
        };
        target.unit.retain(|unit| !is_refused(unit));
    }
}

fn name_of(target: &IscsiTargetSettings, unit: &Unit) -> UnitName {
    UnitName { target: target.name.0.clone(), lun: unit.lun }
}
