//! What stands where: a far disk, who serves it, the link, a gateway, and the host's way to it. Plain
//! data, kept beside every result.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// All that a workload runs over.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabSite {
    /// What the data lies on.
    pub disk: SiteDisk,
    /// Bytes of each volume: whole MiB.
    pub bytes: u64,
    /// Who gives the disk to others.
    pub server: SiteServer,
    /// Nodes with a disk each, 1 to 4. The workload runs on all of them at once.
    pub nodes: u8,
    /// What is between host and nodes; `None`: nothing, both are in one network namespace.
    pub link: Option<SiteLink>,
    /// A cache on the way.
    pub gateway: Option<SiteGateway>,
    /// How the host comes to the volume.
    pub host: Host,
    /// The sessions over the link.
    pub session: SiteSession,
    /// Bytes of memory that the workload has for itself and for pages of files; `None`: this machine's. What is
    /// larger has to be written before the workload is done.
    pub memory: Option<u64>,
}

/// What the data of a volume lies on.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteDisk {
    /// Where the bytes are.
    pub data: SiteBacking,
    /// The service times of a simulated disk on top, by the word that the `disk` layer has for it; `None`:
    /// those of where the bytes are. Only Forebay has these.
    pub model: Option<String>,
    /// More keys of the `disk` layer, with their values as text: `cache`, "2MiB".
    pub more: BTreeMap<String, String>,
}

/// Where bytes are.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteBacking {
    /// In the memory of the process; for tgt, in a file in memory.
    #[default]
    Memory,
    /// In a file on the disk of this machine.
    File,
}

/// Who gives the disk to others.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteServer {
    /// A node of ours.
    #[default]
    Forebay,
    /// tgt, Debian's, its settings untouched.
    Tgt,
    /// nbdkit, Debian's, with its memory plugin: it speaks NBD, so qemu-storage-daemon has to be the initiator.
    Nbdkit,
    /// Nobody: the disk is the host's own. There is no link, and no session.
    Host,
}

/// A link between the host's end, near, and the nodes', far.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteLink {
    /// From the host to the nodes.
    pub near_to_far: wan::DirectionSettings,
    /// And back.
    pub far_to_near: wan::DirectionSettings,
    /// What its chance comes from.
    pub seed: u64,
}

/// A cache between host and nodes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteGateway {
    /// Where it is.
    pub beside: GatewayPlacement,
    /// When it acknowledges writes, as `report` of a cache layer.
    pub report: String,
    /// Whether its NVRAM counts as stable (`nvram_survives = "power-loss"`), as in the papers.
    pub stable_nvram: bool,
    /// Bytes of the log, a file on the disk of this machine.
    pub log: u64,
    /// Bytes of its memory.
    pub dram: u64,
    /// Bytes of its NVRAM, a file in memory: at most half of `dram`.
    pub nvram: u64,
    /// More keys of the cache layer, with their values as text: `destage_idle`, "1s".
    pub more: BTreeMap<String, String>,
}

/// Where a gateway is.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayPlacement {
    /// A process at the host's end of the link.
    #[default]
    Host,
    /// In the node's process, over its disk.
    Node,
    /// In the process that attaches the volume.
    Attach,
}

/// How the host comes to the volume.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// A block device (`forebay attach`), what is on it not defined.
    #[default]
    Device,
    /// An ext4 on it, made for this site, mounted with these options; "" is the defaults, and
    /// "sync,dirsync" makes metadata synchronous.
    Mounted(String),
    /// No device: the workload logs in itself.
    Url,
    /// A peer: qemu-storage-daemon's initiator, of iSCSI or of NBD, which shows the volume as a file.
    QemuStorageDaemon,
}

/// How Forebay's ends of a session are set.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteSession {
    /// Connections.
    pub connections: u8,
    /// The congestion control at both ends, as `congestion` in the settings. A name of the kernel's is also made the
    /// default of both namespaces.
    pub congestion: String,
    /// Bytes of each socket buffer at both ends; `None`: the kernel chooses.
    pub socket_buffer: Option<u64>,
    /// More keys of `[iscsi]` at the node and the gateway, with their values as text.
    pub iscsi: BTreeMap<String, String>,
}

const MIB: u64 = 1 << 20;

impl Default for LabSite {
    /// A gigabyte of memory, served by a node of ours, attached in the same namespace.
    fn default() -> Self {
        Self {
            disk: SiteDisk::default(),
            bytes: 1024 * MIB,
            server: SiteServer::default(),
            nodes: 1,
            link: None,
            gateway: None,
            host: Host::default(),
            session: SiteSession::default(),
            memory: None,
        }
    }
}

impl LabSite {
    /// Whether only that differs which can be changed while it stands: the memory of workloads, each of which has its
    /// own, and the settings of the link, if one that runs can take the other's. Connections keep the packet size that they
    /// began with, and chance its seed.
    #[must_use]
    pub fn can_become(&self, other: &Self) -> bool {
        let kept = |line: &SiteLink| (line.near_to_far.mtu, line.far_to_near.mtu, line.seed);
        self.link.as_ref().map(kept) == other.link.as_ref().map(kept)
            && Self { link: other.link.clone(), memory: other.memory, ..self.clone() } == *other
    }
}

impl Default for SiteGateway {
    /// As the papers': acknowledged by an NVRAM that counts as stable.
    fn default() -> Self {
        Self {
            beside: GatewayPlacement::default(),
            report: "immediate".to_owned(),
            stable_nvram: true,
            log: 1024 * MIB,
            dram: 256 * MIB,
            nvram: 4 * MIB,
            more: BTreeMap::new(),
        }
    }
}

impl Default for SiteSession {
    fn default() -> Self {
        Self {
            connections: 1,
            // What this kernel would take by itself differs from machine to machine.
            congestion: "reno".to_owned(),
            socket_buffer: None,
            iscsi: BTreeMap::new(),
        }
    }
}

impl SiteLink {
    /// Both directions alike.
    #[must_use]
    pub fn alike(settings: wan::DirectionSettings) -> Self {
        Self { near_to_far: settings.clone(), far_to_near: settings, seed: 1 }
    }

    /// A line with this one-way delay and nothing else.
    #[must_use]
    pub fn of_delay(delay: Duration) -> Self {
        Self::alike(wan::DirectionSettings { delay, ..wan::DirectionSettings::default() })
    }

    /// Both directions, in the order of `wan`.
    #[must_use]
    pub fn settings(&self) -> [wan::DirectionSettings; 2] {
        [self.near_to_far.clone(), self.far_to_near.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_stands_takes_another_distance_and_other_memory_and_nothing_else() {
        let site = LabSite { link: Some(SiteLink::of_delay(Duration::ZERO)), ..LabSite::default() };
        let far = SiteLink::of_delay(Duration::from_millis(8));
        let other = LabSite { link: Some(far.clone()), memory: Some(1 << 20), ..site.clone() };
        assert!(site.can_become(&other) && other.can_become(&site));
        let short = SiteLink::alike(wan::DirectionSettings { mtu: 9000, ..far.near_to_far });
        let differ = [
            LabSite { link: Some(short), ..site.clone() },
            LabSite { link: None, ..site.clone() },
            LabSite { host: Host::Url, ..site.clone() },
        ];
        for other in differ {
            assert!(!site.can_become(&other), "{other:?}");
        }
    }
}
