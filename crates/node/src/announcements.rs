//! Announces the volumes of a node in the naming service.

use std::{net::SocketAddr, sync::Arc};

use ::names::{NodeVolumeEntry, VolumeLocation, VolumeName};
use config::{
    IscsiTargetSettings, NamingServiceSettings, PortalGroupSettings, Settings, with_port,
};
use control::{Failure, NamingStatus, ServingPhase};

use super::{Listening, Node, NodeLockedState};
use crate::naming;

/// The iSCSI port (RFC 7143, 4.2.7.1).
const PORT: u16 = 3260;

impl Node {
    /// Listens on the ports of the naming service, through which nodes tell each other which of them serves each
    /// volume.
    pub(super) async fn open_naming(&self, settings: &Settings) -> Result<(), Failure> {
        let (Some(naming), Some(names)) = (&self.naming, &settings.names) else { return Ok(()) };
        let listen: Vec<SocketAddr> = names.listen.iter().map(|address| address.0).collect();
        let (tasks, bound) = naming::serve(naming, &listen).await?;
        tracing::info!(gln = %naming.gln(), listening = ?bound, "the naming service has started");
        let mut inner = self.inner.lock();
        (inner.naming, inner.naming_tasks) = (bound, tasks);
        Ok(())
    }

    /// Announces to the naming service the volumes that this node serves at present.
    pub(super) fn tell_names(&self) {
        let Some(naming) = &self.naming else { return };
        let (addresses, entries) = {
            let inner = self.inner.lock();
            let settings = Arc::clone(&inner.settings);
            let Some(names) = &settings.names else { return };
            let addresses = inner.naming.iter().filter_map(|bound| names.told(*bound)).collect();
            (elsewhere(addresses), inner.entries(&settings, names))
        };
        naming.tell(addresses, entries);
    }

    /// Asks the seed nodes, and returns all nodes and volumes that the naming service then knows.
    pub async fn known(&self) -> Result<NamingStatus, Failure> {
        Ok(self.naming()?.known_by_seeds().await)
    }

    pub async fn locate(&self, volume: &VolumeName) -> Result<VolumeLocation, Failure> {
        self.naming()?
            .locate(volume)
            .await
            .map_err(|error| Failure::new(error).remedy("`forebay names` shows what is known"))
    }

    pub(super) fn naming(&self) -> Result<&naming::Naming, Failure> {
        self.naming.as_deref().ok_or_else(|| {
            Failure::new("this process does not use a naming service")
                .remedy("add a [names] table to its settings, and restart it")
        })
    }
}

impl NodeLockedState {
    /// Returns the named volumes that are served and can be reached. During the start, also returns volumes that are
    /// still to be opened, without portals: otherwise an older copy at another node could be mistaken for the current
    /// volume.
    fn entries(&self, settings: &Settings, names: &NamingServiceSettings) -> Vec<NodeVolumeEntry> {
        let mut entries = Vec::new();
        let groups = settings.groups();
        for target in &settings.target {
            let served = self.targets.iter().find(|served| served.name == target.name.0);
            let portals = self.portals_of(target, &groups, names);
            for unit in &target.unit {
                let is_served =
                    served.is_some_and(|served| served.units.iter().any(|u| u.lun == unit.lun));
                let Some(volume) = unit.volume.clone() else { continue };
                let portals = if is_served { portals.clone() } else { Vec::new() };
                // Do not announce the volume of a pair before it is served here: the partner may be serving it.
                let is_opening = self.state == ServingPhase::Starting && unit.pair().is_none();
                if portals.is_empty() && !is_opening {
                    continue;
                }
                let target = target.name.0.clone();
                let generation = unit.generation;
                entries.push(NodeVolumeEntry {
                    volume,
                    target,
                    lun: unit.lun,
                    portals,
                    generation,
                });
            }
        }
        entries
    }

    /// Returns the addresses at which other machines can reach a target. The `advertise` address of a portal takes
    /// precedence over its own. `host` of `[names]` replaces an address that stands for all interfaces.
    pub(super) fn portals_of(
        &self,
        target: &IscsiTargetSettings,
        groups: &[PortalGroupSettings],
        names: &NamingServiceSettings,
    ) -> Vec<::names::PortalAddress> {
        let mut portals = Vec::new();
        for group in groups.iter().filter(|group| target.is_reached_through(group)) {
            for (address, portal) in &group.portals {
                let bound =
                    self.portals.iter().filter(|Listening { wanted, .. }| wanted == address);
                for Listening { bound, .. } in bound {
                    let told = match &portal.advertise {
                        Some(told) => Some(with_port(&told.0, PORT)),
                        None => names.told(*bound),
                    };
                    let Some(address) = told else { continue };
                    portals.push(::names::PortalAddress { address, tls: portal.tls.is_some() });
                }
            }
        }
        let is_away = |portal: &::names::PortalAddress| !is_loopback(&portal.address);
        if portals.iter().any(is_away) {
            portals.retain(is_away);
        }
        portals.truncate(::names::MOST_ADDRESSES);
        portals
    }
}

/// Removes loopback addresses, unless there are no other addresses. On another machine, a loopback address means that
/// machine.
fn elsewhere(mut addresses: Vec<String>) -> Vec<String> {
    if addresses.iter().any(|address| !is_loopback(address)) {
        addresses.retain(|address| !is_loopback(address));
    }
    addresses
}

fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}
