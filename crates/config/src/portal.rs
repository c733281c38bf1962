//! Settings of portals and portal groups.

use std::fmt;

use serde::{Deserialize, Deserializer};

use super::{
    IscsiTargetSettings, Settings,
    tls::PortalTls,
    value_types::{Address, ParsedTextVisitor},
};
use crate::quantity::REMEDY;

/// The table `[[portal]]`: a portal with more settings than its address.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct PortalSettings {
    /// IP address and port on which the portal listens, as in `listen`. Required.
    pub address: Option<Address>,
    /// Tag of the portal group, 1 to 65535 (TargetPortalGroupTag). A target is reached through the groups that it
    /// names, by default through all. Hosts with multipath see one path per group: use two groups for two networks.
    pub group: u16,
    /// Address (host:port) that discovery reports in place of `address`, for initiators behind an address translation.
    pub advertise: Option<HostPort>,
    /// Address (host:port) to which every login at this portal is redirected, with status 0101.
    pub redirect: Option<HostPort>,
    /// If true, the redirect is reported as permanent (status 0102), so initiators may store the new address.
    pub redirect_permanently: bool,
    /// TLS 1.3 with a certificate at both ends: `[portal.tls]`. If left out: no TLS.
    pub tls: Option<PortalTls>,
}

impl Default for PortalSettings {
    fn default() -> Self {
        Self {
            address: None,
            group: COMMON_TAG,
            advertise: None,
            redirect: None,
            redirect_permanently: false,
            tls: None,
        }
    }
}

/// Default tag of a portal group: for `listen`, for portals that name none, and for portals of a single target.
pub const COMMON_TAG: u16 = 1;

/// An address `host[:port]`; the host is a name or an IP address (RFC 7143, 13.8).
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPort(pub String);

impl HostPort {
    fn parse(text: &str) -> Result<Self, String> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port_is_right = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_is_right = match bare {
            Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                let is_known = |c: u8| c.is_ascii_alphanumeric() || b".-".contains(&c);
                !host.is_empty() && host.len() <= HOST_BYTES && host.bytes().all(is_known)
            }
        };
        if port_is_right && host_is_right {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "`{text}` is not a host with a port{REMEDY}write one such as \"storage.example:3260\", \
             \"192.0.2.7:3260\" or \"[2001:db8::7]:3260\""
        ))
    }
}

/// Maximum length of a host name (RFC 1035, 2.3.4).
const HOST_BYTES: usize = 253;

impl<'de> Deserialize<'de> for HostPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a host with a port such as \"storage.example:3260\"";
        deserializer.deserialize_str(ParsedTextVisitor(expected, Self::parse))
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A portal group: portals through which the same targets are reached.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortalGroupSettings {
    /// TargetPortalGroupTag of the group.
    pub tag: u16,
    /// Addresses of the portals that belong to single targets (`listen` of a target); `None` for portals of the whole
    /// process.
    pub own: Option<Vec<Address>>,
    /// Portals of the group, each with its address.
    pub portals: Vec<(Address, PortalSettings)>,
}

impl Settings {
    /// Returns the portal groups that lead to targets, or will lead to targets that other nodes move here, in the order
    /// in which the settings name them.
    pub fn groups(&self) -> Vec<PortalGroupSettings> {
        let mut groups: Vec<PortalGroupSettings> = Vec::new();
        let mut add =
            |tag: u16, own: Option<&Vec<Address>>, address: Address, portal: PortalSettings| {
                let is_it = |group: &&mut PortalGroupSettings| {
                    group.tag == tag && group.own.as_ref() == own
                };
                match groups.iter_mut().find(is_it) {
                    Some(group) => group.portals.push((address, portal)),
                    None => groups.push(PortalGroupSettings {
                        tag,
                        own: own.cloned(),
                        portals: vec![(address, portal)],
                    }),
                }
            };
        for address in self.listen() {
            add(COMMON_TAG, None, *address, PortalSettings::default());
        }
        for portal in &self.portal {
            // The rules have refused settings with a portal that has no address.
            if let Some(address) = portal.address {
                add(portal.group, None, address, portal.clone());
            }
        }
        for (index, target) in self.target.iter().enumerate() {
            let Some(own) = &target.listen else { continue };
            let earlier = self.target[..index].iter().any(|t| t.listen.as_ref() == Some(own));
            if !earlier {
                own.iter().for_each(|a| add(COMMON_TAG, Some(own), *a, PortalSettings::default()));
            }
        }
        let awaited = self.awaits_targets();
        groups.retain(|group| {
            awaited && group.own.is_none()
                || self.target.iter().any(|target| target.is_reached_through(group))
        });
        groups
    }

    /// Returns true if the portals of the whole process are open even while no target of the settings uses them. This
    /// is so with `[accept]`, since targets that come from other nodes are reached through all these portals. If all
    /// targets have a `listen` of their own, the default of `listen` opens no portal.
    pub fn awaits_targets(&self) -> bool {
        let is_asked_for = self.listen.is_some() || !self.portal.is_empty();
        self.accept.is_some()
            && (is_asked_for || self.target.iter().all(|target| target.listen.is_none()))
    }

    /// Returns the addresses of the common portals that have no settings besides their address: `listen` of the
    /// settings, or its default.
    pub fn listen(&self) -> &[Address] {
        match &self.listen {
            Some(listen) => listen,
            None if self.portal.is_empty() => &DEFAULT_LISTEN,
            None => &[],
        }
    }
}

/// By default only this machine can connect, because access is not restricted until the user sets rules.
static DEFAULT_LISTEN: [Address; 1] = [Address::LOOPBACK];

impl IscsiTargetSettings {
    /// Returns true if initiators can reach this target through the portals of `group`.
    pub fn is_reached_through(&self, group: &PortalGroupSettings) -> bool {
        match (&self.listen, &group.own) {
            (Some(listen), Some(own)) => listen == own,
            (None, None) => self.groups.as_ref().is_none_or(|tags| tags.contains(&group.tag)),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_ports() {
        for right in ["a", "a.example:1", "10.0.0.1", "10.0.0.1:3260", "[::1]", "[::1]:3260"] {
            assert!(HostPort::parse(right).is_ok(), "{right}");
        }
        for wrong in ["", ":1", "a:", "a:0", "a:70000", "::1", "[x]:1", "a b:1", "a,1", "a:1,2"] {
            assert!(HostPort::parse(wrong).is_err(), "{wrong}");
        }
    }
}
