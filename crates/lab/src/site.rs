//! A site: the remote disk, its target, the link, a gateway, and the way in which the host accesses the volume. A site
//! only describes these parts and starts nothing. The description is stored with every result.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// The site of a workload: all machines, programs and links between the workload and its disks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LabSite {
    pub disk: SiteDisk,
    /// Size of each volume in bytes: whole MiB.
    pub bytes: u64,
    /// The target that serves the disk.
    pub server: SiteServer,
    /// Number of nodes, 1 to 4, each with one disk. The workload runs on the volumes of all nodes
    /// concurrently.
    pub nodes: u8,
    /// The link between host and nodes. `None`: host and nodes are in one network namespace.
    pub link: Option<SiteLink>,
    /// The cache between the host and the nodes; `None` for a site without a cache.
    pub gateway: Option<SiteGateway>,
    pub host: Host,
    /// The settings of the sessions over the link.
    pub session: SiteSession,
    /// Bytes of memory for the workload, including the page cache. `None`: the workload may use all
    /// memory of this machine. If the memory is smaller than the data, the host must write data
    /// before the workload ends.
    pub memory: Option<u64>,
}

/// The storage of a volume: where its bytes are, and the model of a simulated disk.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteDisk {
    pub data: SiteBacking,
    /// The model of a simulated disk, by its name in the `disk` layer; it determines the service
    /// times. `None`: the disk takes only the time of the storage itself. Only Forebay's servers
    /// simulate disks.
    pub model: Option<String>,
    /// Further keys of the `disk` layer, with their values as text, such as `cache` and "2MiB".
    pub more: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteBacking {
    /// In the memory of the server process. For tgt, in a file on a file system in memory.
    #[default]
    Memory,
    /// The volume's data is in a file on this machine's disk.
    File,
}

/// The target that serves a volume's disk.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SiteServer {
    #[default]
    Forebay,
    /// The program tgt of Debian, with its default settings.
    Tgt,
    /// Debian's nbdkit with its memory plugin. Serves volumes by NBD and not by iSCSI, so qemu-storage-daemon must be
    /// the initiator.
    Nbdkit,
    /// No target: the disk is local to the host. There is no link and no session.
    Host,
}

/// An emulated link between the host (the near end) and the nodes (the far end).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteLink {
    /// The direction from the host to the nodes.
    pub near_to_far: wan::DirectionSettings,
    /// The direction from the nodes to the host.
    pub far_to_near: wan::DirectionSettings,
    /// The seed for the random losses and delays of the link.
    pub seed: u64,
}

/// A gateway with a cache, between host and nodes.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteGateway {
    pub beside: GatewayPlacement,
    /// When the gateway acknowledges writes: `report` of a cache layer.
    pub report: String,
    /// True if the NVRAM is stable (`nvram_survives = "power-loss"`), as in the papers.
    pub stable_nvram: bool,
    /// Size in bytes of the gateway's log, which is a file on this machine's disk.
    pub log: u64,
    /// Size of the cache in memory, in bytes.
    pub dram: u64,
    /// Size of the NVRAM in bytes: at most half of `dram`. It is a file in memory.
    pub nvram: u64,
    /// Further keys of the cache layer, with their values as text, such as `destage_idle` and "1s".
    pub more: BTreeMap<String, String>,
}

/// The process in which the gateway's cache runs.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum GatewayPlacement {
    /// The gateway is a process of its own, at the host's end of the link.
    #[default]
    Host,
    /// In the process of the node, above the node's disk.
    Node,
    /// In the process that attaches the volume to the host.
    Attach,
}

/// The way in which the host accesses the volume.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// The host uses the volume as a block device, which `forebay attach` makes; its initial content is undefined.
    #[default]
    Device,
    /// An ext4 file system on a block device. The file system is created for this site and mounted with the options in
    /// this text. An empty text stands for the default options; "sync,dirsync" makes metadata synchronous.
    Mounted(String),
    /// No device: the workload itself is the initiator and logs in to the unit.
    Url,
    /// Instead of our initiator, qemu-storage-daemon logs in by iSCSI or NBD, and exports the
    /// volume as a file.
    QemuStorageDaemon,
}

/// The settings of the iSCSI sessions over the link, at both ends.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteSession {
    pub connections: u8,
    /// The congestion control at both ends: `congestion` in the settings. If the kernel has an
    /// algorithm of this name, it is also the default of both namespaces.
    pub congestion: String,
    /// Size of each socket buffer in bytes, at both ends; `None` to let the kernel choose.
    pub socket_buffer: Option<u64>,
    /// Further keys of `[iscsi]` at the node and the gateway, with their values as text.
    pub iscsi: BTreeMap<String, String>,
}

const MIB: u64 = 1 << 20;

impl Default for LabSite {
    /// Returns a site with 1 GiB in memory, served by a Forebay node and attached in the same namespace.
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
    /// Returns true if a running site can be changed into the other one without a restart. Only the
    /// memory of workloads and the settings of the link may differ. The MTU and the seed of the
    /// link must be equal, too: connections keep the packet size with which they began, and the
    /// link keeps the random numbers of its seed.
    #[must_use]
    pub fn can_become(&self, other: &Self) -> bool {
        let kept = |line: &SiteLink| (line.near_to_far.mtu, line.far_to_near.mtu, line.seed);
        self.link.as_ref().map(kept) == other.link.as_ref().map(kept)
            && Self { link: other.link.clone(), memory: other.memory, ..self.clone() } == *other
    }
}

impl Default for SiteGateway {
    /// Returns a gateway as in the papers: it acknowledges a write when the write is in NVRAM,
    /// which is stable.
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
            // Named explicitly, since the kernel's default may differ between machines.
            congestion: "reno".to_owned(),
            socket_buffer: None,
            iscsi: BTreeMap::new(),
        }
    }
}

impl SiteLink {
    /// Returns a link with the same settings for both directions.
    #[must_use]
    pub fn alike(settings: wan::DirectionSettings) -> Self {
        Self { near_to_far: settings.clone(), far_to_near: settings, seed: 1 }
    }

    /// Returns a link with this one-way delay, and without other restrictions.
    #[must_use]
    pub fn of_delay(delay: Duration) -> Self {
        Self::alike(wan::DirectionSettings { delay, ..wan::DirectionSettings::default() })
    }

    /// Returns the settings of both directions as crate `wan` expects them: near to far first.
    #[must_use]
    pub fn settings(&self) -> [wan::DirectionSettings; 2] {
        [self.near_to_far.clone(), self.far_to_near.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_site_can_change_only_its_distance_and_memory() {
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
