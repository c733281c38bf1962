//! What somebody who came in by one portal sees: targets of its group, and their addresses.

use std::{net::SocketAddr, sync::Arc};

use iscsi::{
    login::{Denial, Directory},
    pdu::LoginStatus,
};

use crate::{
    names::{Device, Names},
    portal::{PortalGroup, Portals, Redirect},
};

/// The view from one connection.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) names: Arc<Names>,
    pub(crate) portals: Arc<Portals>,
    /// The address at our end of the connection.
    pub(crate) local: SocketAddr,
}

impl Door {
    /// The group it belongs to; `None` if the portal was closed meanwhile.
    pub(crate) fn group(&self) -> Option<PortalGroup> {
        self.portals.entered(self.local).map(|portal| portal.group)
    }

    /// The names of the targets that `initiator` may see, each with its addresses.
    pub(crate) fn targets(&self, _initiator: &str) -> Vec<(String, Vec<String>)> {
        let Some(group) = self.group() else { return Vec::new() };
        let addresses = self.portals.addresses(group, self.local);
        let devices = self.names.all().into_iter().filter(|device| device.groups.contains(&group));
        devices.map(|device| (device.name.clone(), addresses.clone())).collect()
    }

    /// The target of that name, if it is reached from here.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<Device>> {
        let group = self.group()?;
        self.names.find(name).filter(|device| device.groups.contains(&group))
    }
}

impl Directory for Door {
    fn admit(&self, _initiator: &str, target: Option<&str>) -> Result<u16, Denial> {
        let portal = self.portals.entered(self.local).ok_or(LoginStatus::ServiceUnavailable)?;
        let device = match target {
            Some(name) => Some(self.find(name).ok_or(LoginStatus::NotFound)?),
            None => None,
        };
        let redirect = device.and_then(|device| device.redirect.clone()).or(portal.redirect);
        match redirect {
            Some(Redirect { address, permanent }) => Err(Denial::Moved { address, permanent }),
            None => Ok(portal.group.tag),
        }
    }

    fn alias(&self, target: &str) -> Option<String> {
        self.find(target)?.alias.clone()
    }
}
