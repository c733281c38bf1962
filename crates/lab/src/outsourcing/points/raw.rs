//! Points on a raw device: the paper's microbenchmarks.

use workload::{Access, Micro, Pattern, Task};

use super::lines::{JUMBO, WAYS, Way, device, disk, gigabit};
use crate::{Disk, Host, Point, Scale, Server, Site};

/// What is done, by the names of points.
const ACCESSES: [(&str, Pattern, Access); 6] = [
    ("random-read", Pattern::Random, Access::Read),
    ("random-write", Pattern::Random, Access::Write),
    ("sequential-read", Pattern::Sequential, Access::Read),
    ("sequential-write", Pattern::Sequential, Access::Write),
    ("identical-read", Pattern::Identical, Access::Read),
    ("identical-write", Pattern::Identical, Access::Write),
];

/// A quick run has no identical blocks in its table.
const QUICK_ACCESSES: usize = 4;

fn micro(pattern: Pattern, access: Access, block_kib: u32, set_mib: u32, scale: Scale) -> Micro {
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

fn point(name: String, site: Site, micro: Micro, runs: u32) -> Point {
    // After writes a sample is read back.
    let after = if micro.access == Access::Write { 1.2 } else { 0.2 };
    let seconds = f64::from(micro.seconds + micro.warm_up_seconds) + after;
    Point { name, site, task: Task::Micro(micro), runs, seconds, windows: false }
}

/// A disk of Table 1 with a set of so many MiB; in a quick run its cache is smaller, so that a second of writes fills it and
/// the disk's own time shows.
fn small_disk(name: &str, set_mib: u32, scale: Scale) -> Disk {
    let mut disk = disk(name);
    if scale == Scale::Quick && name != "null" {
        let cache = match name {
            // A quarter of the set, as in the paper: what is in it already joins what comes. And with less than half a
            // megabyte sequential writes would wait for room as well: eight arms take 33 ms each for what has piled up
            // meanwhile, at half a millisecond a block.
            "array" => format!("{}MiB", set_mib / 4),
            // It parts its cache into 16 runs, which random writes fill however long each may be.
            _ => "128KiB".to_owned(),
        };
        disk.more.insert("cache".to_owned(), cache);
    }
    disk
}

/// Table 1: four disks, with the working set four times their cache.
pub(super) fn table_1(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for (name, cache_mib) in [("dnes", 2), ("ddys", 4), ("array", 128), ("null", 256)] {
        let set = scale.pick(16, 4 * cache_mib);
        let base = device(small_disk(name, set, scale), u64::from(set) + 16);
        // A node without a link says least of what distance does.
        let is_asked = |way: &Way| scale == Scale::Full || *way != Way::Target;
        for way in WAYS.into_iter().filter(is_asked) {
            let accesses = ACCESSES.iter().take(scale.pick(QUICK_ACCESSES, ACCESSES.len()));
            for (word, pattern, access) in accesses.copied() {
                let mut task = micro(pattern, access, 8, set, scale);
                if (pattern, access) == (Pattern::Random, Access::Write) && name != "null" {
                    // Until the cache is full; the array's takes as long as a link lets it.
                    task.warm_up_seconds = scale.pick(1, if name == "array" { 25 } else { 10 });
                }
                let name = format!("table-1/{name}/{word}/{}", way.name());
                points.push(point(name, way.over(base.clone()), task, 1));
            }
        }
    }
    points
}

/// Sizes from 1 to 64 KiB, on what takes no time itself.
pub(super) fn sweep(scale: Scale) -> Vec<Point> {
    let set = scale.pick(16, 64);
    let base = device(disk("null"), u64::from(set) + 16);
    let sizes: &[u32] = scale.pick(&[1, 8, 64], &[1, 2, 4, 8, 16, 32, 64]);
    let ways: &[Way] = scale.pick(&[Way::Delay(0), Way::Delay(4)], &[Way::Delay(0), Way::Delay(8)]);
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

/// Figure 2: where the time of one request goes.
pub(super) fn figure_2(scale: Scale) -> Vec<Point> {
    let base = device(disk("null"), 80);
    let far = Way::Delay(0).over(base.clone());
    let sites = [
        ("device", far.clone()),
        ("url", Site { host: Host::Url, ..far }),
        ("loopback", Site { host: Host::Url, ..base }),
    ];
    let mut points = Vec::new();
    for (how, site) in sites {
        for (word, access) in [("read", Access::Read), ("write", Access::Write)] {
            let task = micro(Pattern::Random, access, 8, 64, scale);
            let name = format!("figure-2/{how}/{word}");
            points.push(point(name, site.clone(), task, scale.pick(1, 5)));
        }
    }
    points
}

/// Section 4.3.1: frames of 1.5 and 8 KB under 8 KiB random writes.
pub(super) fn mtu(scale: Scale) -> Vec<Point> {
    let delays: &[u32] = scale.pick(&[0], &[0, 1, 8]);
    let mut points = Vec::new();
    for delay in delays {
        for mtu in [1500, JUMBO] {
            let base = device(disk("null"), 80);
            let site = Site { link: Some(gigabit(*delay, mtu)), ..base };
            let task = micro(Pattern::Random, Access::Write, 8, 64, scale);
            let name = format!("mtu/random-write/{mtu}/{delay}ms");
            points.push(point(name, site, task, scale.pick(1, 3)));
        }
    }
    points
}

/// Section 4.3.1: windows of 64 KB and of ten times that.
pub(super) fn window(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for (word, bytes) in super::applications::WINDOWS {
        for delay in scale.pick(&[8][..], &[0, 1, 8]) {
            let mut site = Way::Delay(*delay).over(device(disk("null"), 80));
            site.session.socket_buffer = Some(bytes);
            let task = micro(Pattern::Sequential, Access::Write, 64, 64, scale);
            let name = format!("window/sequential-write/{word}/{delay}ms");
            points.push(point(name, site, task, scale.pick(1, 3)));
        }
    }
    points
}

/// Others in the place of ours, on a memory disk.
pub(super) fn peers(scale: Scale) -> Vec<Point> {
    // tgt has no simulated disk: for all of them it is memory.
    let base = device(Disk::default(), 80);
    let peers = [
        ("forebay", base.clone()),
        ("tgt", Site { server: Server::Tgt, ..base.clone() }),
        ("qemu-storage-daemon", Site { host: Host::QemuStorageDaemon, ..base.clone() }),
        ("nbdkit", Site { server: Server::Nbdkit, host: Host::QemuStorageDaemon, ..base }),
    ];
    let mut points = Vec::new();
    for (who, site) in peers {
        for delay in scale.pick(&[0, 4][..], &[0, 4, 8]) {
            let site = Way::Delay(*delay).over(site.clone());
            for (word, pattern, access) in ACCESSES.into_iter().take(scale.pick(2, 4)) {
                let name = format!("peers/{who}/{word}/{delay}ms");
                let task = micro(pattern, access, 8, 64, scale);
                points.push(point(name, site.clone(), task, scale.pick(1, 3)));
            }
        }
    }
    points
}
