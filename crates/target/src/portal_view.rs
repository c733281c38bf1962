//! What somebody who came in by one portal sees: targets of its group that are for it, and their
//! addresses.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use iscsi::{
    login::{Authentication, Denial, Directory, chap::ChapTerms},
    pdu::LoginStatus,
};

use crate::{
    login_access::{LoginAccess, LoginCandidate, Security},
    portal::{PortalGroup, Portals, Redirect},
    target_table::{ServedTargetEntry, TargetTable},
};

/// The view from one connection.
///
/// Whoever may not log in to a target cannot tell it from one that does not exist. Where nobody
/// can prove anything, both are refused at once with 0203 (not found), and the events say which
/// it was. Otherwise both ask for a proof, as a target does that wants one: without the right
/// proof of some user both end in 0201, with it in 0203.
#[derive(Clone)]
pub(crate) struct PortalView {
    pub(crate) names: Arc<TargetTable>,
    pub(crate) portals: Arc<Portals>,
    pub(crate) security: Arc<Security>,
    /// The address at our end of the connection.
    pub(crate) local: SocketAddr,
    /// The one at the other end.
    pub(crate) peer: IpAddr,
}

impl PortalView {
    /// The group it belongs to; `None` if the portal was closed meanwhile.
    pub(crate) fn group(&self) -> Option<PortalGroup> {
        self.portals.entered(self.local).map(|portal| portal.group)
    }

    /// The names of the targets that `initiator`, having proved to be `user`, may log in to, each
    /// with its addresses.
    pub(crate) fn targets(
        &self,
        initiator: &str,
        user: Option<&str>,
    ) -> Vec<(String, Vec<String>)> {
        let Some(group) = self.group() else { return Vec::new() };
        let addresses = self.portals.addresses(group, self.local);
        let visitor = self.visitor(initiator, user);
        let mut devices = self.names.all();
        devices.retain(|device| device.groups.contains(&group));
        devices.retain(|device| device.access().permits(visitor));
        devices.into_iter().map(|device| (device.name.clone(), addresses.clone())).collect()
    }

    /// The target of that name, if it is reached from here.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedTargetEntry>> {
        let group = self.group()?;
        self.names.find(name).filter(|device| device.groups.contains(&group))
    }

    /// Why a login came to nothing that was told that there is no such target: for the events.
    pub(crate) fn explain(&self, initiator: &str, target: &str) -> &'static str {
        match self.find(target) {
            None => "no such target here",
            Some(device) if device.access().might_permit(self.visitor(initiator, None)) => {
                "the target is not for this CHAP user"
            }
            Some(_) => "the target is not for this initiator or network",
        }
    }

    fn visitor<'a>(&self, initiator: &'a str, user: Option<&'a str>) -> LoginCandidate<'a> {
        LoginCandidate { initiator, address: self.peer, user }
    }

    /// The rules that `initiator` meets; `None` if there is no target for it.
    fn access(&self, initiator: &str, target: Option<&str>) -> Option<Arc<LoginAccess>> {
        let access = match target {
            Some(name) => self.find(name)?.access(),
            None => Arc::new(self.security.discovery.clone()),
        };
        access.might_permit(self.visitor(initiator, None)).then_some(access)
    }

    /// Where who may log in is sent.
    fn redirect(&self, target: Option<&str>) -> Result<(), Denial> {
        let device = target.and_then(|name| self.find(name));
        if device.as_ref().is_some_and(|device| device.is_unavailable) {
            return Err(LoginStatus::ServiceUnavailable.into());
        }
        match device.and_then(|device| device.redirect.clone()) {
            Some(Redirect { address, permanent }) => Err(Denial::Moved { address, permanent }),
            None => Ok(()),
        }
    }
}

impl Directory for PortalView {
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, Denial> {
        let portal = self.portals.entered(self.local).ok_or(LoginStatus::ServiceUnavailable)?;
        let access = self.access(initiator, target);
        let is_in = |access: &LoginAccess| access.permits(self.visitor(initiator, None));
        if access.as_deref().is_some_and(is_in) {
            self.redirect(target)?;
        }
        if let Some(Redirect { address, permanent }) = portal.redirect {
            return Err(Denial::Moved { address, permanent });
        }
        match access {
            Some(_) => {}
            // Whether there are targets is no secret.
            None if target.is_none() => return Err(LoginStatus::AuthorizationFailure.into()),
            None if self.security.users.is_empty() => return Err(LoginStatus::NotFound.into()),
            None => {}
        }
        Ok(portal.group.tag)
    }

    fn authentication(&self, initiator: &str, target: Option<&str>) -> Authentication {
        let access = self.access(initiator, target);
        let Security { users, algorithms, .. } = &*self.security;
        let terms = ChapTerms {
            users: users.clone(),
            algorithms: algorithms.clone(),
            mutual: access.as_ref().and_then(|access| access.mutual.clone()),
            // Who proves more is told of more.
            preferred: target.is_none(),
        };
        Authentication {
            none: access.is_some_and(|access| access.permits(self.visitor(initiator, None))),
            chap: (!users.is_empty()).then_some(terms),
        }
    }

    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        user: Option<&str>,
    ) -> Result<(), Denial> {
        let visitor = self.visitor(initiator, user);
        match self.access(initiator, target) {
            Some(access) if access.permits(visitor) => self.redirect(target),
            _ if target.is_none() => Err(LoginStatus::AuthorizationFailure.into()),
            _ => Err(LoginStatus::NotFound.into()),
        }
    }

    fn alias(&self, target: &str) -> Option<String> {
        self.find(target)?.alias.clone()
    }
}
