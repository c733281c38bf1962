//! Represents a session (I_T nexus) at all units of its target.

use std::sync::Arc;

use unit::{Neighbours, Nexus};

use crate::target_table::ServedTargetEntry;

/// A nexus that is open at the units of a target. Dropping the handle closes it there.
pub(crate) struct NexusHandle {
    /// The target with the units at which the nexus is open.
    pub(crate) device: Arc<ServedTargetEntry>,
    pub(crate) nexus: Nexus,
}

impl NexusHandle {
    /// Opens the nexus at all units of the target.
    pub(crate) fn open(device: Arc<ServedTargetEntry>, nexus: Nexus) -> Self {
        device.units().for_each(|unit| unit.nexus_opened(&nexus));
        let nexus_handle = Self { device, nexus };
        nexus_handle.tell_reach();
        nexus_handle
    }

    /// Changes to `device`: closes the nexus at units that were removed, and opens it at units that were added.
    /// Commands at removed units must have ended before.
    pub(crate) fn change(&mut self, device: Arc<ServedTargetEntry>) {
        let before = std::mem::replace(&mut self.device, device);
        before.units_beyond(&self.device).for_each(|(_, unit)| unit.nexus_closed(&self.nexus));
        self.device.units_beyond(&before).for_each(|(_, unit)| unit.nexus_opened(&self.nexus));
        self.tell_reach();
    }

    /// Gives each unit the list of units that third-party copies of this session may access: those of the session's own
    /// target.
    fn tell_reach(&self) {
        for unit in self.device.units() {
            unit.nexus_reaches(&self.nexus, Arc::clone(&self.device) as Arc<dyn Neighbours>);
        }
    }
}

impl Drop for NexusHandle {
    fn drop(&mut self) {
        self.device.units().for_each(|unit| unit.nexus_closed(&self.nexus));
    }
}
