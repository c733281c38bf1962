//! Access rules for logins: by initiator name, network and CHAP user.

use std::{fmt, net::IpAddr, str::FromStr, sync::Arc};

use iscsi::login::chap::{ChapAlgorithm, Credential};

/// The rules that decide which initiators may log in to one target, or for discovery.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginAccess {
    /// An initiator is admitted if it matches one of these rules; `None` admits every initiator.
    pub rules: Option<Vec<LoginAccessRule>>,
    /// The credential with which the target authenticates itself if an initiator requests mutual CHAP.
    pub mutual: Option<Credential>,
}

/// A rule matches an initiator that meets all conditions that are set. A rule without conditions matches every
/// initiator.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginAccessRule {
    /// The initiator's iSCSI name. A `*` at the end matches every name that begins with the text before it.
    pub initiator: Option<String>,
    /// The network of the initiator's address.
    pub network: Option<NetworkPrefix>,
    /// The CHAP user as which the initiator has to authenticate.
    pub user: Option<String>,
}

/// The CHAP users and algorithms of a server, and who may log in for discovery.
#[derive(Clone, Debug)]
pub struct Security {
    /// The CHAP users of all targets.
    pub users: Arc<[Credential]>,
    /// The hash algorithms that initiators may use, in the order of our preference.
    pub algorithms: Arc<[ChapAlgorithm]>,
    /// Rules for discovery sessions. SendTargets lists only the targets that the initiator may log in to with the
    /// identity that it has proved.
    pub discovery: LoginAccess,
}

impl Default for Security {
    fn default() -> Self {
        let (users, algorithms) = (Arc::default(), Arc::new(ChapAlgorithm::ALL));
        Self { users, algorithms, discovery: LoginAccess::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoginCandidate<'a> {
    pub(crate) initiator: &'a str,
    pub(crate) address: IpAddr,
    /// The CHAP user as which the initiator has authenticated; `None` before or without CHAP.
    pub(crate) user: Option<&'a str>,
}

impl LoginAccess {
    /// Returns true if the initiator may log in.
    pub(crate) fn permits(&self, visitor: LoginCandidate<'_>) -> bool {
        self.any(|rule| {
            let is_user = rule.user.is_none() || rule.user.as_deref() == visitor.user;
            is_user && rule.fits(visitor)
        })
    }

    /// Returns true if the initiator may log in once it has authenticated as a suitable CHAP user.
    pub(crate) fn might_permit(&self, visitor: LoginCandidate<'_>) -> bool {
        self.any(|rule| rule.fits(visitor))
    }

    fn any(&self, permits: impl Fn(&LoginAccessRule) -> bool) -> bool {
        self.rules.as_ref().is_none_or(|rules| rules.iter().any(permits))
    }
}

impl LoginAccessRule {
    /// Checks all conditions of the rule except the user.
    fn fits(&self, visitor: LoginCandidate<'_>) -> bool {
        let is_name = |pattern: &String| matches(pattern, visitor.initiator);
        self.initiator.as_ref().is_none_or(is_name)
            && self.network.is_none_or(|network| network.contains(visitor.address))
    }
}

/// Compares names without case: iSCSI names are case-insensitive (RFC 3722).
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(begin) => {
            let head = name.as_bytes().get(..begin.len());
            head.is_some_and(|head| head.eq_ignore_ascii_case(begin.as_bytes()))
        }
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// An IP network: a range of addresses that share their leading bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NetworkPrefix {
    address: IpAddr,
    /// The length of the prefix in bits.
    prefix: u8,
}

impl NetworkPrefix {
    /// Returns true if the network contains the address. An IPv4-mapped IPv6 address is treated as IPv4.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(its)) => {
                same(ours.to_bits().into(), its.to_bits().into(), self.prefix, 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(its)) => {
                same(ours.to_bits(), its.to_bits(), self.prefix, 128)
            }
            _ => false,
        }
    }

    /// Returns true if this network contains all addresses of the network `other`.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.prefix <= other.prefix
            && self.address.is_ipv4() == other.address.is_ipv4()
            && self.contains(other.address)
    }
}

fn same(a: u128, b: u128, prefix: u8, bits: u8) -> bool {
    (a ^ b).checked_shr(u32::from(bits - prefix)).unwrap_or(0) == 0
}

impl FromStr for NetworkPrefix {
    type Err = String;

    /// Parses `10.0.0.0/8`, `fd00::/8`, or a single address.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{text}` is not a network: {what}");
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr =
            address.parse().map_err(|_| wrong("it does not begin with an IP address"))?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) => {
                let prefix = prefix.parse().ok().filter(|&prefix: &u8| prefix <= bits);
                prefix.ok_or_else(|| {
                    wrong(&format!("the prefix length after the / must be 0 to {bits}"))
                })?
            }
        };
        let network = Self { address, prefix };
        let host_bits = match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let mask = 1u128.checked_shl(u32::from(bits - prefix)).map_or(u128::MAX, |bit| bit - 1);
        if host_bits & mask != 0 {
            return Err(wrong("bits are set after the prefix"));
        }
        if address.to_canonical() != address {
            return Err(wrong("write an IPv4 network in IPv4 notation"));
        }
        Ok(network)
    }
}

impl fmt::Display for NetworkPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> NetworkPrefix {
        text.parse().unwrap()
    }

    #[test]
    fn a_network_contains_addresses_with_its_prefix() {
        for (text, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.7", "10.0.0.7", "10.0.0.6"),
            ("10.0.0.7", "::ffff:10.0.0.7", "::ffff:10.0.0.8"),
            ("0.0.0.0/0", "192.0.2.1", "2001:db8::1"),
            ("fd00::/8", "fdff::1", "fe80::1"),
            ("::/0", "2001:db8::1", "192.0.2.1"),
            ("2001:db8::1", "2001:db8::1", "2001:db8::2"),
        ] {
            assert!(network(text).contains(inside.parse().unwrap()), "{text} {inside}");
            assert!(!network(text).contains(outside.parse().unwrap()), "{text} {outside}");
        }
    }

    #[test]
    fn invalid_network_prefixes_are_refused() {
        for text in
            ["", "10.0.0.0/33", "10.0.0.1/8", "host/8", "10.0.0.0/-1", "::/129", "::ffff:10.0.0.1"]
        {
            assert!(text.parse::<NetworkPrefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rule_permits_only_initiators_that_match_all_its_conditions() {
        let rule = |initiator: &str, network: &str, user: &str| {
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let network = some(network).map(|text| text.parse().unwrap());
            LoginAccessRule { initiator: some(initiator), network, user: some(user) }
        };
        let rules = vec![
            rule("iqn.a:*", "10.0.0.0/8", "alice"),
            rule("iqn.b:host", "", ""),
            rule("", "", "bob"),
        ];
        let access = LoginAccess { rules: Some(rules), mutual: None };
        for (initiator, address, user, permits, might) in [
            ("iqn.a:one", "10.0.0.1", Some("alice"), true, true),
            ("IQN.A:one", "10.0.0.1", Some("alice"), true, true),
            ("iqn.a:one", "11.0.0.1", Some("alice"), false, true),
            ("iqn.a:one", "10.0.0.1", None, false, true),
            ("iqn.b:host", "192.0.2.1", None, true, true),
            ("iqn.b:host", "192.0.2.1", Some("alice"), true, true),
            ("iqn.b:hostile", "192.0.2.1", None, false, true),
            ("iqn.c:x", "::1", Some("bob"), true, true),
        ] {
            let visitor = LoginCandidate { initiator, address: address.parse().unwrap(), user };
            assert_eq!(access.permits(visitor), permits, "{visitor:?}");
            assert_eq!(access.might_permit(visitor), might, "{visitor:?}");
        }
        let anybody = LoginCandidate { initiator: "x", address: [10, 0, 0, 1].into(), user: None };
        assert!(LoginAccess::default().permits(anybody));
        let closed = LoginAccess { rules: Some(Vec::new()), mutual: None };
        assert!(!closed.might_permit(anybody));
    }
}
