//! The paper's two testbeds, and the disks at the far end.

use std::time::Duration;

use crate::{Host, LabSite, SiteDisk, SiteLink, SiteServer, SiteSession};

/// How far the storage is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum StorageDistance {
    /// The disk is the host's.
    Local,
    /// It is served, without a link.
    Target,
    /// It is served over the delay testbed: one way, in milliseconds.
    Delay(u32),
}

/// Those of the paper's tables.
pub(super) const WAYS: [StorageDistance; 7] = [
    StorageDistance::Local,
    StorageDistance::Target,
    StorageDistance::Delay(0),
    StorageDistance::Delay(1),
    StorageDistance::Delay(2),
    StorageDistance::Delay(4),
    StorageDistance::Delay(8),
];

/// Those of a quick run where a workload takes seconds.
pub(super) const FEW: [StorageDistance; 3] =
    [StorageDistance::Local, StorageDistance::Delay(0), StorageDistance::Delay(8)];

/// And where the others say enough.
pub(super) const FEWER: [StorageDistance; 1] = [StorageDistance::Delay(8)];

impl StorageDistance {
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Target => "target".to_owned(),
            Self::Delay(delay) => format!("{delay}ms"),
        }
    }

    /// A site with this between.
    pub fn over(self, site: LabSite) -> LabSite {
        match self {
            Self::Local => LabSite { server: SiteServer::Host, link: None, ..site },
            Self::Target => LabSite { link: None, ..site },
            Self::Delay(delay) => LabSite { link: Some(gigabit(delay, JUMBO)), ..site },
        }
    }
}

/// The paper's "8 KB" frames: an 8 KiB block with its header is two of them, and 1500-byte frames make six.
pub(super) const JUMBO: u16 = 8192;

/// The delay testbed (section 3.1): a gigabit switch, with a delay one way in milliseconds.
pub(super) fn gigabit(delay: u32, mtu: u16) -> SiteLink {
    SiteLink::alike(wan::DirectionSettings {
        delay: Duration::from_millis(delay.into()),
        rate: Some(1_000_000_000),
        // What is on its way at 8 ms: a shorter queue would drop what TCP may rightly have sent.
        queue_bytes: 2 << 20,
        mtu,
        ..wan::DirectionSettings::default()
    })
}

/// The congestion testbed (section 3.1): routers with a backbone of 155 Mbit/s, a round trip of 0.46 ms, and
/// background traffic of so many percent of it, both ways.
pub(super) fn backbone(load: u32) -> SiteLink {
    SiteLink::alike(wan::DirectionSettings {
        delay: Duration::from_micros(230),
        rate: Some(155_000_000),
        background: f64::from(load) / 100.0,
        ..wan::DirectionSettings::default()
    })
}

/// A disk of the paper by its name here. Their write caches are on, and the paper takes what they hold for safe.
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

/// A site of one node with this disk, used as a device.
pub(super) fn device(disk: SiteDisk, mib: u64) -> LabSite {
    LabSite {
        disk,
        bytes: mib << 20,
        host: Host::Device,
        session: SiteSession::default(),
        ..LabSite::default()
    }
}
