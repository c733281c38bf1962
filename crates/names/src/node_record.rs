//! The record that a node publishes about itself. A newer record replaces it as a whole. Records of other nodes are
//! checked before they are accepted.

use std::{collections::HashSet, fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::gln::Gln;

/// Maximum number of volumes of a node. A record is below 700 KB if every field has its maximum length.
pub const MOST_VOLUMES: usize = 256;
/// Maximum number of portals of a volume, and of naming addresses of a node: one for each network of a machine.
pub const MOST_ADDRESSES: usize = 8;
/// Upper bound of the counters in a record. Below it they are exact in every JSON reader, and a change every
/// microsecond takes a century to reach it.
pub const MOST_COUNT: u64 = 1 << 52;

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeRecord {
    #[serde(flatten)]
    pub stamp: NodeRecordStamp,
    /// A random number of the owner's process. The number changes with a restart. If two numbers alternate,
    /// two processes use the owner's GLN.
    pub instance: u64,
    /// Name of the node, for people to read.
    pub node: NodeName,
    /// The addresses of the node's naming service, `host:port`.
    pub addresses: Vec<String>,
    pub volumes: Vec<NodeVolumeEntry>,
}

/// The node to which a record belongs, and the version of the record. Only that node increases the version.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub struct NodeRecordStamp {
    pub gln: Gln,
    /// Number of changes of the content, continued across restarts.
    pub version: u64,
    /// Number of signs of life since the last change.
    pub beat: u64,
}

/// A volume of a node's record: its name, its target and LUN, and the portals at which initiators find it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct NodeVolumeEntry {
    pub volume: VolumeName,
    pub target: String,
    pub lun: u16,
    pub portals: Vec<PortalAddress>,
    /// The generation: how often the volume has moved from node to node. If two nodes have the volume, the
    /// one with the higher number has the current copy.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub generation: u64,
}

/// Returns true for a volume that never moved. The field is then left out, so that nodes of older versions, which do
/// not know this field, can read the record.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(generation: &u64) -> bool {
    *generation == 0
}

#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct PortalAddress {
    /// Host and port of the portal as `host:port`, with IPv6 addresses in brackets.
    pub address: String,
    /// True if connections to the portal begin with a TLS handshake.
    pub tls: bool,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NodeRecordRefusal {
    /// There are more entries of one kind than permitted, for example volumes in a record.
    #[error("more than {most} {what}")]
    TooMany { what: &'static str, most: usize },
    /// The record may be valid, but the table is full.
    #[error("there is no room for more than {most} {what}")]
    Full { what: &'static str, most: usize },
    #[error("{0}")]
    Wrong(&'static str),
}

impl NodeRecord {
    pub fn check(&self) -> Result<(), NodeRecordRefusal> {
        self.stamp.check()?;
        at_most(self.addresses.len(), MOST_ADDRESSES, "naming addresses of a node")?;
        if !self.addresses.iter().all(|address| is_address(address)) {
            return Err(NodeRecordRefusal::Wrong("an invalid naming address"));
        }
        at_most(self.volumes.len(), MOST_VOLUMES, "volumes of a node")?;
        self.volumes.iter().try_for_each(NodeVolumeEntry::check)?;
        let mut seen = HashSet::new();
        match self.volumes.iter().all(|entry| seen.insert(&entry.volume)) {
            true => Ok(()),
            false => Err(NodeRecordRefusal::Wrong("two volumes with the same name on one node")),
        }
    }
}

impl NodeRecordStamp {
    /// Checks the stamp of a record that another node has sent.
    pub(crate) fn check(&self) -> Result<(), NodeRecordRefusal> {
        match self.version < MOST_COUNT && self.beat < MOST_COUNT {
            true => Ok(()),
            false => Err(NodeRecordRefusal::Wrong("a number of changes that is too high")),
        }
    }
}

impl NodeVolumeEntry {
    fn check(&self) -> Result<(), NodeRecordRefusal> {
        if !is_target(&self.target) {
            return Err(NodeRecordRefusal::Wrong("an invalid target name"));
        }
        if self.lun >= 16_384 {
            return Err(NodeRecordRefusal::Wrong("a LUN above 16383"));
        }
        if self.generation >= MOST_COUNT {
            return Err(NodeRecordRefusal::Wrong("a number of moves that is too high"));
        }
        at_most(self.portals.len(), MOST_ADDRESSES, "portals of a volume")?;
        match self.portals.iter().all(|portal| is_address(&portal.address)) {
            true => Ok(()),
            false => Err(NodeRecordRefusal::Wrong("an invalid portal address")),
        }
    }
}

fn at_most(count: usize, most: usize, what: &'static str) -> Result<(), NodeRecordRefusal> {
    if count > most { Err(NodeRecordRefusal::TooMany { what, most }) } else { Ok(()) }
}

/// Checks an iSCSI name (RFC 7143, 4.2.7). The name must not have line breaks or other characters that do not
/// belong into a message.
fn is_target(name: &str) -> bool {
    let known = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    let allowed = |c: u8| c.is_ascii_alphanumeric() || b".-:_".contains(&c);
    known && name.len() <= 223 && name.bytes().all(allowed)
}

/// Checks `host:port`, where the host is a name, an IPv4 address or an IPv6 address in brackets.
#[must_use]
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_right = match bare {
        Some(six) => six.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let known = |c: u8| c.is_ascii_alphanumeric() || b".-".contains(&c);
            // The maximum length of a name (RFC 1035, 2.3.4).
            !host.is_empty() && host.len() <= 253 && host.bytes().all(known)
        }
    };
    let digits = !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit());
    host_is_right && digits && port.parse::<u16>().is_ok_and(|port| port > 0)
}

/// Name of a volume, by which all nodes know it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct VolumeName(String);

/// The name of a node, for people.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeName(String);

/// Returns true if the text is a label: 1 to 64 of `a`-`z`, `0`-`9`, `.`, `-` and `_`, the first of them a letter or a
/// digit. Labels are used in addresses, on command lines and in messages.
fn is_label(text: &str) -> bool {
    let alone = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let known = |c: u8| alone(c) || b".-_".contains(&c);
    let begins = text.bytes().next().is_some_and(alone);
    begins && text.len() <= 64 && text.bytes().all(known)
}

/// Volume names and node names are labels.
macro_rules! label {
    ($name:ident, $what:literal) => {
        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NodeRecordRefusal;

            fn from_str(text: &str) -> Result<Self, NodeRecordRefusal> {
                match is_label(text) {
                    true => Ok(Self(text.to_owned())),
                    false => Err(NodeRecordRefusal::Wrong($what)),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
            }
        }
    };
}

label!(VolumeName, "not the name of a volume: 1 to 64 of a-z, 0-9, `.`, `-` and `_`");
label!(NodeName, "not the name of a node: 1 to 64 of a-z, 0-9, `.`, `-` and `_`");

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn record(number: u8, version: u64, volumes: &[&str]) -> NodeRecord {
        let entry = |name: &&str| NodeVolumeEntry {
            volume: name.parse().unwrap(),
            target: format!("iqn.2026-11.test:node-{number}"),
            lun: 0,
            portals: vec![PortalAddress { address: format!("10.0.0.{number}:3260"), tls: false }],
            generation: 0,
        };
        NodeRecord {
            stamp: NodeRecordStamp { gln: Gln::new([number; 16]), version, beat: 0 },
            instance: number.into(),
            node: format!("node-{number}").parse().unwrap(),
            addresses: vec![format!("10.0.0.{number}:3299")],
            volumes: volumes.iter().map(entry).collect(),
        }
    }

    #[test]
    fn a_record_reads_back() {
        let record = record(1, 7, &["a", "b-2.c_d"]);
        record.check().unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<NodeRecord>(&text).unwrap(), record);
    }

    #[test]
    fn names_that_break_lines_or_leave_a_label_are_refused() {
        for wrong in ["", "A", "a b", "-a", "a\n", "../a", "a/b", "a\u{1b}[2J", &"a".repeat(65)] {
            assert!(wrong.parse::<VolumeName>().is_err(), "{wrong:?}");
            assert!(wrong.parse::<NodeName>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn addresses() {
        for right in ["a:1", "10.0.0.1:3260", "[fd00::2]:3260", "node.example:65535"] {
            assert!(is_address(right), "{right}");
        }
        for wrong in ["", "a", ":1", "a:0", "a:65536", "::1:3", "[a]:1", "a b:1", "a:+1", "a\n:1"] {
            assert!(!is_address(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn an_invalid_record_is_refused() {
        let refused = |change: &dyn Fn(&mut NodeRecord)| {
            let mut record = record(1, 7, &["a"]);
            change(&mut record);
            assert!(record.check().is_err(), "{record:?}");
        };
        refused(&|r| r.stamp.version = u64::MAX);
        refused(&|r| r.stamp.beat = MOST_COUNT);
        refused(&|r| r.addresses = vec!["10.0.0.1".into()]);
        refused(&|r| r.addresses = vec!["a:1".into(); 9]);
        refused(&|r| r.volumes[0].target = "iqn.a\nb".into());
        refused(&|r| r.volumes[0].target = "disk".into());
        refused(&|r| r.volumes[0].lun = 16_384);
        refused(&|r| r.volumes[0].portals[0].address = "x y:1".into());
        refused(&|r| r.volumes[0].generation = MOST_COUNT);
        refused(&|r| {
            r.volumes[0].portals = vec![PortalAddress { address: "a:1".into(), tls: true }; 9]
        });
        refused(&|r| r.volumes.push(r.volumes[0].clone()));
        refused(&|r| r.volumes = vec![r.volumes[0].clone(); MOST_VOLUMES + 1]);
    }

    #[test]
    fn the_longest_record_fits_a_frame() {
        let mut longest = record(1, MOST_COUNT - 1, &["a"]);
        let host = format!("{}:65535", "h".repeat(253));
        longest.instance = u64::MAX;
        longest.addresses = vec![host.clone(); MOST_ADDRESSES];
        longest.volumes = (0..MOST_VOLUMES)
            .map(|at| NodeVolumeEntry {
                volume: format!("{at:064}").parse().unwrap(),
                target: format!("iqn.{}", "t".repeat(219)),
                lun: 16_383,
                portals: vec![PortalAddress { address: host.clone(), tls: false }; MOST_ADDRESSES],
                generation: MOST_COUNT - 1,
            })
            .collect();
        longest.check().unwrap();
        let bytes = serde_json::to_vec(&longest).unwrap().len();
        assert!(bytes < crate::FRAME_BYTES - crate::FIRST_BYTES, "{bytes}");
    }
}
