//! The paper's two testbeds, and the disks at the far end.

use std::time::Duration;

use crate::{Disk, Host, Line, Server, Session, Site};

/// How far the storage is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// The disk is the host's.
    Local,
    /// It is served, without a link.
    Target,
    /// It is served over the delay testbed: one way, in milliseconds.
    Delay(u32),
}

/// Those of the paper's tables.
pub(super) const WAYS: [Way; 7] = [
    Way::Local,
    Way::Target,
    Way::Delay(0),
    Way::Delay(1),
    Way::Delay(2),
    Way::Delay(4),
    Way::Delay(8),
];

/// Those of a quick run where a workload takes seconds.
pub(super) const FEW: [Way; 3] = [Way::Local, Way::Delay(0), Way::Delay(8)];

/// And where the others say enough.
pub(super) const FEWER: [Way; 1] = [Way::Delay(8)];

impl Way {
    pub fn name(self) -> String {
        match self {
            Self::Local => "local".to_owned(),
            Self::Target => "target".to_owned(),
            Self::Delay(delay) => format!("{delay}ms"),
        }
    }

    /// A site with this between.
    pub fn over(self, site: Site) -> Site {
        match self {
            Self::Local => Site { server: Server::Host, link: None, ..site },
            Self::Target => Site { link: None, ..site },
            Self::Delay(delay) => Site { link: Some(gigabit(delay, JUMBO)), ..site },
        }
    }
}

/// The paper's "8 KB" frames: an 8 KiB block with its header is two of them, and 1500-byte frames make six.
pub(super) const JUMBO: u16 = 8192;

/// The delay testbed (section 3.1): a gigabit switch, with a delay one way in milliseconds.
pub(super) fn gigabit(delay: u32, mtu: u16) -> Line {
    Line::alike(wan::Settings {
        delay: Duration::from_millis(delay.into()),
        rate: Some(1_000_000_000),
        // What is on its way at 8 ms: a shorter queue would drop what TCP may rightly have sent.
        queue_bytes: 2 << 20,
        mtu,
        ..wan::Settings::default()
    })
}

/// The congestion testbed (section 3.1): routers with a backbone of 155 Mbit/s, a round trip of 0.46 ms, and
/// background traffic of so many percent of it, both ways.
pub(super) fn backbone(load: u32) -> Line {
    Line::alike(wan::Settings {
        delay: Duration::from_micros(230),
        rate: Some(155_000_000),
        background: f64::from(load) / 100.0,
        ..wan::Settings::default()
    })
}

/// A disk of the paper by its name here. Their write caches are on, and the paper takes what they hold for safe.
pub(super) fn disk(name: &str) -> Disk {
    let model = match name {
        "dnes" => "ibm-dnes",
        "ddys" => "ibm-ddys",
        other => other,
    };
    let mut disk = Disk { model: Some(model.to_owned()), ..Disk::default() };
    if name != "null" {
        disk.more.insert("cache_protected".to_owned(), "true".to_owned());
    }
    disk
}

/// A site of one node with this disk, used as a device.
pub(super) fn device(disk: Disk, mib: u64) -> Site {
    Site {
        disk,
        bytes: mib << 20,
        host: Host::Device,
        session: Session::default(),
        ..Site::default()
    }
}
