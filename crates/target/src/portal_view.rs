//! The targets and addresses that an initiator sees through one portal: targets of its portal group that it may log
//! in to.

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

/// The targets, portals and access rules as one connection sees them.
///
/// An initiator must not be able to distinguish a target that refuses it from a target that does not exist. Without
/// CHAP users, both logins are refused at once with status 0203 (not found), and the events say which case it was. With
/// CHAP users, both logins require authentication: they end with 0201 if the initiator has not authenticated, and with
/// 0203 otherwise.
#[derive(Clone)]
pub(crate) struct PortalView {
    pub(crate) names: Arc<TargetTable>,
    pub(crate) portals: Arc<Portals>,
    pub(crate) security: Arc<Security>,
    pub(crate) local: SocketAddr,
    pub(crate) peer: IpAddr,
}

impl PortalView {
    /// Returns the group of the portal; `None` if the portal was closed meanwhile.
    pub(crate) fn group(&self) -> Option<PortalGroup> {
        self.portals.entered(self.local).map(|portal| portal.group)
    }

    /// Returns the names of the targets that `initiator` may log in to after it has authenticated as `user`, each
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

    /// Returns the target `name` if initiators can reach it through this portal.
    pub(crate) fn find(&self, name: &str) -> Option<Arc<ServedTargetEntry>> {
        let group = self.group()?;
        self.names.find(name).filter(|device| device.groups.contains(&group))
    }

    /// Returns the true reason of a login that was refused with "not found". The reason is for events only and is not
    /// sent to the initiator.
    pub(crate) fn explain(&self, initiator: &str, target: &str) -> &'static str {
        match self.find(target) {
            None => "no such target at this portal",
            Some(device) if device.access().might_permit(self.visitor(initiator, None)) => {
                "the target does not admit this CHAP user"
            }
            Some(_) => "the target does not admit this initiator or network",
        }
    }

    fn visitor<'a>(&self, initiator: &'a str, user: Option<&'a str>) -> LoginCandidate<'a> {
        LoginCandidate { initiator, address: self.peer, user }
    }

    /// Returns the access rules that apply to `initiator`; `None` if no rule can admit it.
    fn access(&self, initiator: &str, target: Option<&str>) -> Option<Arc<LoginAccess>> {
        let access = match target {
            Some(name) => self.find(name)?.access(),
            None => Arc::new(self.security.discovery.clone()),
        };
        access.might_permit(self.visitor(initiator, None)).then_some(access)
    }

    /// Returns the redirect of the target as an error, for an initiator that may log in.
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
            // Discovery may be refused as unauthorized, since that answer does not reveal whether a target exists.
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
            // For discovery, prefer CHAP even if it is not required: an initiator that authenticates may see more
            // targets.
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
