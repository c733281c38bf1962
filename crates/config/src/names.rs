//! Settings of the naming service, and the two forms in which a remote layer names its volume.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use names::{NodeName, VolumeName};
use serde::{Deserialize, Deserializer};

use super::{portal::HostPort, value_types::ParsedTextVisitor};
use crate::quantity::{REMEDY, TimeSpan};

/// Default TCP port of the naming service, to which IANA has assigned no port.
pub const NAMING_PORT: u16 = 3299;

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct NamingServiceSettings {
    /// Name of this node for people: a-z, 0-9, `.`, `-`, `_`. Nodes are identified by a number in `state`, not by this
    /// name. If left out: a name made of the host name.
    #[serde(deserialize_with = "node")]
    pub node: Option<NodeName>,
    /// Addresses on which this node answers other nodes: IP addresses with ports (3299 if left out). If empty: this
    /// process only asks others.
    pub listen: Vec<NamingAddress>,
    /// Host name or address, without a port, that is announced in place of an address that stands for all interfaces,
    /// such as 0.0.0.0. Others must be able to connect to it.
    pub host: Option<HostPort>,
    /// Naming addresses of other nodes, of which each passes on all entries that it has received. One that answers
    /// suffices; name two or more for failures. This node may be among them. All are asked before each connect to a
    /// volume, and one every 2 s. If none answers within 2 s, none is asked for the next connects during 2 s.
    pub seeds: Vec<HostPort>,
    /// File with the secret that all nodes of the naming service share; the rules for it are those of a user's secret.
    /// An attacker with this secret can direct gateways to other nodes.
    pub secret_file: Option<PathBuf>,
    /// Environment variable that holds this secret, in place of `secret_file`.
    pub secret_env: Option<String>,
    /// Silence of a node after which its volumes are shown as stale, 5s to 1h. If left out: 30s.
    pub stale_after: TimeSpan,
}

impl Default for NamingServiceSettings {
    fn default() -> Self {
        Self {
            node: None,
            listen: Vec::new(),
            host: None,
            seeds: Vec::new(),
            secret_file: None,
            secret_env: None,
            stale_after: TimeSpan::seconds(30),
        }
    }
}

impl NamingServiceSettings {
    /// Returns the seed nodes as `host:port`.
    pub fn seeds(&self) -> impl Iterator<Item = String> {
        self.seeds.iter().map(|seed| with_port(&seed.0, NAMING_PORT))
    }

    /// Returns the address to announce for a socket bound to `bound`; `None` if it listens on all interfaces and no
    /// `host` is set.
    pub fn told(&self, bound: SocketAddr) -> Option<String> {
        match (bound.ip().is_unspecified(), &self.host) {
            (false, _) => Some(bound.to_string()),
            (true, Some(host)) => Some(format!("{}:{}", host.0, bound.port())),
            (true, None) => None,
        }
    }
}

/// Returns `host` if it contains a port; otherwise adds `port` to it.
pub fn with_port(host: &str, port: u16) -> String {
    if has_port(host) { host.to_owned() } else { format!("{host}:{port}") }
}

/// Returns true if the text ends with a port. Colons of an IPv6 address without brackets are not a port.
pub fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'))
}

/// The address of a listening socket of the naming service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NamingAddress(pub SocketAddr);

impl<'de> Deserialize<'de> for NamingAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| {
            let with_port = text.parse().ok();
            let ip = || text.trim_matches(['[', ']']).parse().ok();
            let bare = || Some(SocketAddr::new(ip()?, NAMING_PORT));
            with_port.or_else(bare).map(Self).ok_or_else(|| {
                format!(
                    "`{text}` is not an address{REMEDY}write an IP address and a port, as in \
                     \"10.0.0.2:{NAMING_PORT}\""
                )
            })
        };
        deserializer
            .deserialize_str(ParsedTextVisitor("an address such as \"10.0.0.2:3299\"", parse))
    }
}

fn node<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NodeName>, D::Error> {
    let expected = "the name of a node such as \"attic\"";
    deserializer
        .deserialize_str(ParsedTextVisitor(expected, |text: &str| label(text, "attic")))
        .map(Some)
}

/// Parses the name of a unit's volume.
pub fn volume<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<VolumeName>, D::Error> {
    let expected = "the name of a volume such as \"payroll\"";
    deserializer
        .deserialize_str(ParsedTextVisitor(expected, |text: &str| label(text, "payroll")))
        .map(Some)
}

fn label<T: FromStr<Err: fmt::Display>>(text: &str, example: &str) -> Result<T, String> {
    text.parse()
        .map_err(|error| format!("`{text}` is {error}{REMEDY}write one such as \"{example}\""))
}

/// The far volume of a layer or command: an address, or the name of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FarVolumeAddress {
    /// An address of the form `iscsi://…`.
    At(initiator::Url),
    /// A name of the form `gln:VOLUME`.
    Named(VolumeName),
}

impl FromStr for FarVolumeAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(GLN) {
            Some(volume) => {
                volume.parse().map(Self::Named).map_err(|error| format!("`{volume}` is {error}"))
            }
            None => {
                text.parse().map(Self::At).map_err(|error: initiator::UrlError| error.to_string())
            }
        }
    }
}

/// Prefix that marks the name of a volume where an address is possible.
const GLN: &str = "gln:";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_volume_is_given_by_address_or_by_name() {
        assert_eq!(
            "gln:pay.roll-1".parse(),
            Ok(FarVolumeAddress::Named("pay.roll-1".parse().unwrap()))
        );
        assert!(matches!("iscsi://a/iqn.x:y/0".parse(), Ok(FarVolumeAddress::At(_))));
        for wrong in ["gln:", "gln:a/b", "gln:A", "payroll", ""] {
            assert!(wrong.parse::<FarVolumeAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn ports_that_are_left_out() {
        for (host, whole) in [
            ("a", "a:3299"),
            ("a:1", "a:1"),
            ("[::1]", "[::1]:3299"),
            ("[::1]:2", "[::1]:2"),
            ("10.0.0.1", "10.0.0.1:3299"),
        ] {
            assert_eq!(with_port(host, NAMING_PORT), whole);
        }
    }
}
