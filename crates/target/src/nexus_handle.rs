//! A nexus at the units of its target, as long as it lasts.

use std::sync::Arc;

use unit::{Neighbours, Nexus};

use crate::target_table::ServedTargetEntry;

/// A nexus, and the target as its units know the nexus from.
pub(crate) struct NexusHandle {
    /// The target as it was when the nexus began, or was last told of a change.
    pub(crate) device: Arc<ServedTargetEntry>,
    pub(crate) nexus: Nexus,
}

impl NexusHandle {
    /// A nexus begins.
    pub(crate) fn open(device: Arc<ServedTargetEntry>, nexus: Nexus) -> Self {
        device.units().for_each(|unit| unit.nexus_opened(&nexus));
        let presence = Self { device, nexus };
        presence.tell_reach();
        presence
    }

    /// The target is `device` from now on: the nexus ends at the units that are gone, and begins
    /// at those that are new. Commands at the former have ended.
    pub(crate) fn change(&mut self, device: Arc<ServedTargetEntry>) {
        let before = std::mem::replace(&mut self.device, device);
        before.units_beyond(&self.device).for_each(|(_, unit)| unit.nexus_closed(&self.nexus));
        self.device.units_beyond(&before).for_each(|(_, unit)| unit.nexus_opened(&self.nexus));
        self.tell_reach();
    }

    /// For copies: what this session could log in to, and nothing else of the server.
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
