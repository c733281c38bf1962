//! Points on a raw device: the paper's microbenchmarks.

use workload::{Access, Micro, Pattern, Task};

use super::lines::{JUMBO, WAYS, Way, backbone, device, disk, gigabit};
use crate::{Gateway, Host, Line, Point, Scale, Server, Site};

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

/// Table 1: four disks, with the working set four times their cache.
pub(super) fn table_1(scale: Scale) -> Vec<Point> {
    let mut points = Vec::new();
    for (name, cache_mib) in [("dnes", 2), ("ddys", 4), ("array", 128), ("null", 256)] {
        let set = scale.pick(16, 4 * cache_mib);
        let base = device(disk(name, scale), u64::from(set) + 16);
        for way in WAYS {
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
    let base = device(disk("null", scale), u64::from(set) + 16);
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
    let base = device(disk("null", scale), 80);
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

/// Figure 7: a cache of reads at the host's side, of the array's. The set is read once before, so that what fits is there.
pub(super) fn figure_7(scale: Scale) -> Vec<Point> {
    let set: u32 = scale.pick(32, 256);
    let mut points = Vec::new();
    for percent in scale.pick(&[0, 30][..], &[0, 10, 30, 60]) {
        let gateway = (*percent > 0).then(|| Gateway {
            dram: (u64::from(set) * percent / 100) << 20,
            nvram: 1 << 20,
            // What is read from the log is no miss either: as small as it can be.
            log: 8 << 20,
            ..Gateway::default()
        });
        let word = if *percent > 0 { percent.to_string() } else { "none".to_owned() };
        let base = Site { gateway, ..device(disk("array", scale), u64::from(set) + 16) };
        let mut add = |name: String, link: Line| {
            let mut task = micro(Pattern::Random, Access::Read, 8, set, scale);
            task.seconds = scale.pick(1, 8);
            task.warm_up_seconds = scale.pick(1, 12);
            let site = Site { link: Some(link), ..base.clone() };
            points.push(point(name, site, task, 1));
        };
        for delay in scale.pick(&[0, 8][..], &[0, 1, 2, 4, 8]) {
            add(format!("figure-7/delay/{word}/{delay}ms"), gigabit(*delay, JUMBO));
        }
        for load in scale.pick(&[0, 70][..], &[0, 30, 50, 60, 70, 75]) {
            add(format!("figure-7/load/{word}/{load}"), backbone(*load));
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
            let base = device(disk("null", scale), 80);
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
            let mut site = Way::Delay(*delay).over(device(disk("null", scale), 80));
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
    let base = device(crate::Disk::default(), 80);
    let peers = [
        ("forebay", base.clone()),
        ("tgt", Site { server: Server::Tgt, ..base.clone() }),
        ("qemu-storage-daemon", Site { host: Host::QemuStorageDaemon, ..base }),
    ];
    let mut points = Vec::new();
    for (who, site) in peers {
        for delay in scale.pick(&[0, 4][..], &[0, 1, 4, 8]) {
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
