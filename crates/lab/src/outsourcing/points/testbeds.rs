//! The two testbeds of the outsourcing paper, and the disks of their storage servers.

use std::time::Duration;

use crate::{Host, LabSite, SiteDisk, SiteLink, SiteServer, SiteSession};

/// The distance between the host and the storage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StorageDistance {
    /// The disk is local to the host.
    Local,
    /// The disk is served by a target on the host itself, without a link.
    Target,
    /// The disk is behind the delay testbed, with this one-way delay in milliseconds.
    Delay(u32),
}

/// The distances in the tables of the outsourcing paper.
pub(super) const WAYS: [StorageDistance; 7] = [
    StorageDistance::Local,
    StorageDistance::Target,
    StorageDistance::Delay(0),
    StorageDistance::Delay(1),
    StorageDistance::Delay(2),
    StorageDistance::Delay(4),
    StorageDistance::Delay(8),
];

/// The distances of a quick run for workloads that take seconds.
pub(super) const FEW: [StorageDistance; 3] =
    [StorageDistance::Local, StorageDistance::Delay(0), StorageDistance::Delay(8)];

/// The only distance in a quick run, for points at which one distance suffices.
pub(super) const FEWER: [StorageDistance; 1] = [StorageDistance::Delay(8)];

impl StorageDistance {
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Target => "target".to_owned(),
            Self::Delay(delay) => format!("{delay}ms"),
        }
    }

    /// Returns `site` with its link or its server changed so that the storage has this distance.
    pub fn over(self, site: LabSite) -> LabSite {
        match self {
            Self::Local => LabSite { server: SiteServer::Host, link: None, ..site },
            Self::Target => LabSite { link: None, ..site },
            Self::Delay(delay) => LabSite { link: Some(gigabit(delay, JUMBO)), ..site },
        }
    }
}

/// The MTU of the paper's "8 KB" frames: an 8 KiB block with its header takes two such frames, or
/// six frames of 1500 bytes.
pub(super) const JUMBO: u16 = 8192;

/// Returns the delay testbed (section 3.1): a gigabit switch with this one-way delay in
/// milliseconds.
pub(super) fn gigabit(delay: u32, mtu: u16) -> SiteLink {
    SiteLink::alike(wan::DirectionSettings {
        delay: Duration::from_millis(delay.into()),
        rate: Some(1_000_000_000),
        // The queue has space for all data in flight at a delay of 8 ms. A shorter queue would drop segments that TCP
        // is allowed to send.
        queue_bytes: 2 << 20,
        mtu,
        ..wan::DirectionSettings::default()
    })
}

/// Returns the congestion testbed (section 3.1): routers with a backbone of 155 Mbit/s, a round
/// trip of 0.46 ms, and in both directions background traffic of this percentage of the rate.
pub(super) fn backbone(load: u32) -> SiteLink {
    SiteLink::alike(wan::DirectionSettings {
        delay: Duration::from_micros(230),
        rate: Some(155_000_000),
        background: f64::from(load) / 100.0,
        ..wan::DirectionSettings::default()
    })
}

/// Returns a disk of the paper by its word in the names of measured points. Its write cache is on,
/// and data in it is considered stable, as in the paper.
pub(super) fn disk(name: &str) -> SiteDisk {
    let model = match name {
        "dnes" => "ibm-dnes",
        "ddys" => "ibm-ddys",
        other => other,
    };
    let mut disk = SiteDisk { model: Some(model.to_owned()), ..SiteDisk::default() };
    if name != "null" {
        disk.more.insert("cache_protected".to_owned(), "true".to_owned());
    }
    disk
}

/// Returns a site with one node that has this disk, and a host that uses it as a block device.
pub(super) fn device(disk: SiteDisk, mib: u64) -> LabSite {
    LabSite {
        disk,
        bytes: mib << 20,
        host: Host::Device,
        session: SiteSession::default(),
        ..LabSite::default()
    }
}
