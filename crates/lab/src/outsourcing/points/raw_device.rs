//! The points that access a raw device: the paper's microbenchmarks.

use workload::{Micro, MicroAccess, MicroAccessPattern, WorkloadTask};

use super::testbeds::{JUMBO, StorageDistance, WAYS, device, disk, gigabit};
use crate::{ExperimentPoint, ExperimentScale, Host, LabSite, SiteDisk, SiteServer};

/// The kinds of access, with the words that stand for them in the names of measured points.
const ACCESSES: [(&str, MicroAccessPattern, MicroAccess); 6] = [
    ("random-read", MicroAccessPattern::Random, MicroAccess::Read),
    ("random-write", MicroAccessPattern::Random, MicroAccess::Write),
    ("sequential-read", MicroAccessPattern::Sequential, MicroAccess::Read),
    ("sequential-write", MicroAccessPattern::Sequential, MicroAccess::Write),
    ("identical-read", MicroAccessPattern::Identical, MicroAccess::Read),
    ("identical-write", MicroAccessPattern::Identical, MicroAccess::Write),
];

/// A quick run measures only the first accesses of the list, this many: not those to identical blocks.
const QUICK_ACCESSES: usize = 4;

fn micro(
    pattern: MicroAccessPattern,
    access: MicroAccess,
    block_kib: u32,
    set_mib: u32,
    scale: ExperimentScale,
) -> Micro {
    Micro {
        access,
        pattern,
        block_kib,
        set_mib,
        seconds: scale.pick(1, 3),
        warm_up_seconds: scale.pick(0, 1),
        ..Micro::default()
    }
}

fn point(name: String, site: LabSite, micro: Micro, runs: u32) -> ExperimentPoint {
    // Seconds that a run takes after the measured time: for writes, a sample of the blocks is read back.
    let after = if micro.access == MicroAccess::Write { 1.2 } else { 0.2 };
    let seconds = f64::from(micro.seconds + micro.warm_up_seconds) + after;
    ExperimentPoint { name, site, task: WorkloadTask::Micro(micro), runs, seconds, windows: false }
}

/// Returns a disk of Table 1 for a working set of this size in MiB. In a quick run the disk's cache
/// is smaller, so that one second of writes fills it and the measurement shows the disk's own time.
fn small_disk(name: &str, set_mib: u32, scale: ExperimentScale) -> SiteDisk {
    let mut disk = disk(name);
    if scale == ExperimentScale::Quick && name != "null" {
        let cache = match name {
            // The cache has a quarter of the set, as in the paper: writes to blocks that are already in the cache are
            // merged. It needs at least half a megabyte; otherwise sequential writes would wait for free space, too.
            // The array has eight arms, each of which takes 33 ms for a write; meanwhile a block arrives every half
            // millisecond.
            "array" => format!("{}MiB", set_mib / 4),
            // The disk model divides its cache into 16 runs of blocks. Random writes fill these
            // runs, however long a run may be.
            _ => "128KiB".to_owned(),
        };
        disk.more.insert("cache".to_owned(), cache);
    }
    disk
}

/// Returns the points to measure for Table 1 of the outsourcing paper: four disks, each with a
/// working set of four times its cache.
pub(super) fn table_1(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for (name, cache_mib) in [("dnes", 2), ("ddys", 4), ("array", 128), ("null", 256)] {
        let set = scale.pick(16, 4 * cache_mib);
        let base = device(small_disk(name, set, scale), u64::from(set) + 16);
        // A quick run leaves out the row `target` (a node without a link), since this row shows least about the effect
        // of distance.
        let is_asked = |way: &StorageDistance| {
            scale == ExperimentScale::Full || *way != StorageDistance::Target
        };
        for way in WAYS.into_iter().filter(is_asked) {
            let accesses = ACCESSES.iter().take(scale.pick(QUICK_ACCESSES, ACCESSES.len()));
            for (word, pattern, access) in accesses.copied() {
                let mut task = micro(pattern, access, 8, set, scale);
                if (pattern, access) == (MicroAccessPattern::Random, MicroAccess::Write)
                    && name != "null"
                {
                    // Random writes must fill the cache before the measurement. For the array's
                    // large cache this takes as long as the link needs to transfer the data.
                    task.warm_up_seconds = scale.pick(1, if name == "array" { 25 } else { 10 });
                }
                let name = format!("table-1/{name}/{word}/{}", way.name());
                points.push(point(name, way.over(base.clone()), task, 1));
            }
        }
    }
    points
}

/// Returns the points to measure with requests of 1 to 64 KiB, on a simulated disk that answers at once.
pub(super) fn sweep(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let set = scale.pick(16, 64);
    let base = device(disk("null"), u64::from(set) + 16);
    let sizes: &[u32] = scale.pick(&[1, 8, 64], &[1, 2, 4, 8, 16, 32, 64]);
    let ways: &[StorageDistance] = scale.pick(
        &[StorageDistance::Delay(0), StorageDistance::Delay(4)],
        &[StorageDistance::Delay(0), StorageDistance::Delay(8)],
    );
    let mut points = Vec::new();
    for way in ways {
        for (word, pattern, access) in ACCESSES.into_iter().take(scale.pick(1, 4)) {
            for size in sizes {
                let name = format!("sweep/null/{word}/{size}k/{}", way.name());
                let task = micro(pattern, access, *size, set, scale);
                points.push(point(name, way.over(base.clone()), task, 1));
            }
        }
    }
    points
}

/// Returns the points to measure for Figure 2 of the outsourcing paper: the parts of the time of a
/// request.
pub(super) fn figure_2(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let base = device(disk("null"), 80);
    let far = StorageDistance::Delay(0).over(base.clone());
    let sites = [
        ("device", far.clone()),
        ("url", LabSite { host: Host::Url, ..far }),
        ("loopback", LabSite { host: Host::Url, ..base }),
    ];
    let mut points = Vec::new();
    for (how, site) in sites {
        for (word, access) in [("read", MicroAccess::Read), ("write", MicroAccess::Write)] {
            let task = micro(MicroAccessPattern::Random, access, 8, 64, scale);
            let name = format!("figure-2/{how}/{word}");
            points.push(point(name, site.clone(), task, scale.pick(1, 5)));
        }
    }
    points
}

/// Returns the points to measure for section 4.3.1 of the outsourcing paper: 8 KiB random writes
/// with frames of 1.5 and 8 KB.
pub(super) fn mtu(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let delays: &[u32] = scale.pick(&[0], &[0, 1, 8]);
    let mut points = Vec::new();
    for delay in delays {
        for mtu in [1500, JUMBO] {
            let base = device(disk("null"), 80);
            let site = LabSite { link: Some(gigabit(*delay, mtu)), ..base };
            let task = micro(MicroAccessPattern::Random, MicroAccess::Write, 8, 64, scale);
            let name = format!("mtu/random-write/{mtu}/{delay}ms");
            points.push(point(name, site, task, scale.pick(1, 3)));
        }
    }
    points
}

/// Returns the points to measure for section 4.3.1 of the outsourcing paper: TCP windows of 64 KB
/// and of 640 KB.
pub(super) fn window(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for (word, bytes) in super::applications::WINDOWS {
        for delay in scale.pick(&[8][..], &[0, 1, 8]) {
            let mut site = StorageDistance::Delay(*delay).over(device(disk("null"), 80));
            site.session.socket_buffer = Some(bytes);
            let task = micro(MicroAccessPattern::Sequential, MicroAccess::Write, 64, 64, scale);
            let name = format!("window/sequential-write/{word}/{delay}ms");
            points.push(point(name, site, task, scale.pick(1, 3)));
        }
    }
    points
}

/// Returns the points to measure with programs of other projects as target and initiator in place of Forebay's, on a
/// disk in memory.
pub(super) fn peers(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    // Keep all volumes in memory, since tgt has no simulated disk.
    let base = device(SiteDisk::default(), 80);
    let peers = [
        ("forebay", base.clone()),
        ("tgt", LabSite { server: SiteServer::Tgt, ..base.clone() }),
        ("qemu-storage-daemon", LabSite { host: Host::QemuStorageDaemon, ..base.clone() }),
        ("nbdkit", LabSite { server: SiteServer::Nbdkit, host: Host::QemuStorageDaemon, ..base }),
    ];
    let mut points = Vec::new();
    for (who, site) in peers {
        for delay in scale.pick(&[0, 4][..], &[0, 4, 8]) {
            let site = StorageDistance::Delay(*delay).over(site.clone());
            for (word, pattern, access) in ACCESSES.into_iter().take(scale.pick(2, 4)) {
                let name = format!("peers/{who}/{word}/{delay}ms");
                let task = micro(pattern, access, 8, 64, scale);
                points.push(point(name, site.clone(), task, scale.pick(1, 3)));
            }
        }
    }
    points
}
