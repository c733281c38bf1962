//! The points that run the paper's application benchmarks on a file system. Their remote disk is the array, unless
//! stated otherwise.

use workload::{Build, Postmark, Sdet, Surge, Tpcc, WorkloadTask};

use super::testbeds::{FEW, FEWER, JUMBO, StorageDistance, WAYS, backbone, disk, gigabit};
use crate::{
    ExperimentPoint, ExperimentScale, GatewayPlacement, Host, LabSite, SiteGateway, SiteLink,
};

/// The two ways to write metadata: the word in the names of measured points, and the mount options.
/// With `soft`, the file system commits every second instead of every five. `forebay attach` caches
/// up to 64 MiB of unflushed data and answers reads from it; with frequent commits, a run of some
/// seconds still writes most of this data to the remote volume.
const SOFT: (&str, &str) = ("soft", "commit=1");
const SYNC: (&str, &str) = ("sync", "sync,dirsync");

/// A workload: its name in points, the seconds that it takes without delays, and the number of round trips for which it
/// waits.
struct OutsourcingWorkload {
    name: &'static str,
    task: WorkloadTask,
    seconds: f64,
    trips: f64,
}

impl OutsourcingWorkload {
    /// Returns the estimated seconds at this distance. With a cache, the workload's round trips end at the gateway and
    /// do not cross the link.
    fn seconds(&self, way: StorageDistance, is_cached: bool) -> f64 {
        let delay = match way {
            StorageDistance::Delay(delay) => f64::from(delay),
            _ => 0.0,
        };
        let trip = if is_cached { 0.0005 } else { 0.002 + 2.0 * delay / 1000.0 };
        self.seconds + self.trips * trip
    }
}

/// Returns a site with a volume of this size in MiB. Choose small volumes: mkfs discards all
/// blocks, and with a gateway these discards go through its log.
fn volume(mib: u64) -> LabSite {
    LabSite { disk: disk("array"), bytes: mib << 20, ..LabSite::default() }
}

/// Size in MiB of a volume that is large enough for all workloads.
fn roomy(scale: ExperimentScale) -> u64 {
    scale.pick(256, 2048)
}

/// Size in MiB of a volume that is large enough for PostMark and scripts.
const TIGHT: u64 = 256;

fn mounted(site: LabSite, options: &str) -> LabSite {
    LabSite { host: Host::Mounted(options.to_owned()), ..site }
}

/// Returns a gateway whose cache is larger than the data of the workloads.
fn large() -> SiteGateway {
    SiteGateway { log: 256 << 20, dram: 128 << 20, ..SiteGateway::default() }
}

fn postmark(files: u32, transactions: u32) -> OutsourcingWorkload {
    OutsourcingWorkload {
        name: "postmark",
        task: WorkloadTask::Postmark(Postmark { files, transactions, ..Postmark::default() }),
        seconds: 0.5 + f64::from(files + transactions) / 5000.0,
        // A transaction creates or deletes a file, and reads or appends to another. In both steps the file system waits
        // for some blocks one after the other, a round trip for each.
        trips: f64::from(files) * 12.0 + f64::from(transactions) * 12.0,
    }
}

/// Returns PostMark as in the paper: its files of 512 bytes to 16 KB do not fit in the memory of
/// the host, so that it waits for writes and reads. A file takes 8 KiB on average.
fn beyond_memory(files: u32, transactions: u32) -> OutsourcingWorkload {
    let postmark =
        Postmark { files, transactions, least: 512, most: 16 << 10, ..Postmark::default() };
    OutsourcingWorkload {
        name: "postmark",
        task: WorkloadTask::Postmark(postmark),
        seconds: 1.0 + f64::from(files + transactions) / 1000.0,
        // Half of the transactions wait for a read of a file or of its end. Writes wait for fewer round trips, since
        // several writes are in flight at once.
        trips: f64::from(transactions) + f64::from(files) / 20.0,
    }
}

/// Returns the bytes of memory of a host that can cache few of PostMark's files: a tenth, as
/// section 4.3.1 says about Windows NT. The running programs take a part of this memory.
fn little(scale: ExperimentScale) -> Option<u64> {
    Some(scale.pick(12, 16) << 20)
}

/// Returns PostMark with files that exceed the memory of [`little`], and as many transactions as
/// fit in the available time.
fn more_than_little(scale: ExperimentScale) -> OutsourcingWorkload {
    beyond_memory(scale.pick(3000, 12_000), scale.pick(300, 3000))
}

/// Returns TPC-C. In a quick run its database is small enough for some seconds, in a full run it
/// has a whole warehouse.
fn tpcc(scale: ExperimentScale) -> OutsourcingWorkload {
    let tpcc = Tpcc {
        customers: scale.pick(100, 3000),
        items: scale.pick(2000, 100_000),
        clients: scale.pick(4, 10),
        seconds: scale.pick(4, 30),
        warm_up: scale.pick(1, 5),
        shared_buffers: scale.pick(16, 32),
        log: scale.pick(64, 1024),
        ..Tpcc::default()
    };
    // The estimate includes the time to create, stop, start and check the database.
    let seconds = f64::from(tpcc.seconds + tpcc.warm_up) + scale.pick(8.0, 60.0);
    OutsourcingWorkload { name: "tpcc", task: WorkloadTask::Tpcc(tpcc), seconds, trips: 0.0 }
}

fn surge(scale: ExperimentScale, is_sync: bool) -> OutsourcingWorkload {
    let surge = Surge {
        files: scale.pick(200, 2000),
        users: scale.pick(20, 100),
        seconds: scale.pick(4, 30),
        warm_up: scale.pick(1, 5),
        // Requests are sent this many times as fast as Surge's users would send them. The paper's 400 users sent 3058
        // requests per second. At Surge's own pace they would send 30 times fewer, and the result would depend only on
        // their reading time.
        pace: 30.0,
    };
    let seconds = f64::from(surge.seconds + surge.warm_up) + scale.pick(2.0, 10.0);
    OutsourcingWorkload {
        name: "surge",
        task: WorkloadTask::Surge(surge),
        seconds,
        trips: if is_sync { scale.pick(600.0, 6000.0) } else { 0.0 },
    }
}

/// Returns the five workloads of Table 2, each with the memory of the host that runs it.
fn all(scale: ExperimentScale, is_sync: bool) -> Vec<(OutsourcingWorkload, Option<u64>)> {
    let waits = |trips: f64| if is_sync { trips } else { 0.0 };
    let scripts = scale.pick(2, 16);
    let build = OutsourcingWorkload {
        name: "build",
        task: WorkloadTask::Build(Build::default()),
        seconds: 30.0,
        trips: waits(3000.0),
    };
    let sdet = OutsourcingWorkload {
        name: "sdet",
        task: WorkloadTask::Sdet(Sdet { scripts, rounds: 1 }),
        seconds: f64::from(scripts) * 0.6,
        trips: waits(300.0),
    };
    let postmark = if is_sync {
        (postmark(scale.pick(10, 40), scale.pick(20, 100)), None)
    } else {
        (more_than_little(scale), little(scale))
    };
    let mut all = vec![(sdet, None), postmark];
    match (scale, is_sync) {
        // A quick run leaves out the build, which takes longer than all others together. With synchronous metadata it
        // has only SDET and PostMark, since the others are slow then.
        (ExperimentScale::Quick, true) => {}
        (ExperimentScale::Quick, false) => {
            all.extend([(surge(scale, is_sync), None), (tpcc(scale), None)])
        }
        // TPC-C is left out with synchronous metadata: a database itself syncs what must be stable,
        // and creating one on a synchronous mount would take hours.
        (ExperimentScale::Full, true) => all.extend([(build, None), (surge(scale, is_sync), None)]),
        (ExperimentScale::Full, false) => {
            all.extend([(build, None), (surge(scale, is_sync), None), (tpcc(scale), None)]);
        }
    }
    all
}

/// Returns the points to measure for Table 2 of the outsourcing paper: applications by distance, with soft or
/// synchronous metadata, without and with a gateway.
pub(super) fn table_2(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for (meta, options) in [SOFT, SYNC] {
        for how in ["plain", "gateway"] {
            let quick: &[StorageDistance] = if how == "gateway" { &FEWER } else { &FEW };
            // A gateway hides the distance to remote storage, so no point has a gateway and a local disk.
            let full: &[StorageDistance] = if how == "gateway" { &FEW[1..] } else { &WAYS };
            for way in scale.pick(quick, full) {
                let plain = way.over(mounted(volume(roomy(scale)), options));
                let gateway = (how == "gateway").then(large);
                let site = LabSite { gateway, ..plain };
                for (application, memory) in all(scale, meta == "sync") {
                    points.push(ExperimentPoint {
                        name: format!("table-2/{}/{meta}/{how}/{}", application.name, way.name()),
                        site: LabSite { memory, ..site.clone() },
                        seconds: application.seconds(*way, how == "gateway"),
                        task: application.task,
                        runs: 1,
                        windows: false,
                    });
                }
            }
        }
    }
    points
}

/// Returns the points to measure for Table 3 of the outsourcing paper: background traffic on the
/// backbone.
pub(super) fn table_3(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let loads: &[u32] = scale.pick(&[0, 75], &[0, 20, 30, 35, 40, 50, 55, 60, 70, 75]);
    let mut points = Vec::new();
    for (meta, options) in [SOFT, SYNC] {
        for load in loads {
            let site = mounted(volume(roomy(scale)), options);
            let site = LabSite { link: Some(backbone(*load)), ..site };
            let applications = match meta {
                "soft" => vec![(more_than_little(scale), little(scale)), (tpcc(scale), None)],
                _ => vec![(postmark(scale.pick(10, 100), scale.pick(20, 400)), None)],
            };
            for (application, memory) in applications {
                points.push(ExperimentPoint {
                    name: format!("table-3/{}/{meta}/{load}", application.name),
                    site: LabSite { memory, ..site.clone() },
                    seconds: application.seconds(StorageDistance::Delay(1), false),
                    task: application.task,
                    runs: 1,
                    windows: false,
                });
            }
        }
    }
    points
}

/// Returns the points to measure for Figure 4 of the outsourcing paper: SDET on one disk and on the
/// array.
pub(super) fn figure_4(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for name in ["ddys", "array"] {
        let metas = scale.pick(&[SOFT][..], &[SOFT, SYNC]);
        for (meta, options) in metas {
            let ways: &[StorageDistance] = scale.pick(&FEW, &WAYS);
            // Figure 4 has points for the one-way delays only, and none for local disks.
            for way in ways.iter().filter(|way| matches!(way, StorageDistance::Delay(_))) {
                let site = LabSite { disk: disk(name), ..volume(TIGHT) };
                let scripts = scale.pick(2, 16);
                points.push(ExperimentPoint {
                    name: format!("figure-4/{name}/{meta}/{}", way.name()),
                    site: way.over(mounted(site, options)),
                    task: WorkloadTask::Sdet(Sdet { scripts, rounds: 1 }),
                    runs: 1,
                    seconds: f64::from(scripts) * 0.6 + if *meta == "sync" { 30.0 } else { 0.0 },
                    windows: false,
                });
            }
        }
    }
    points
}

/// Returns the smallest possible cache: a log of 8 MiB, and 2 MiB of memory.
fn small(beside: GatewayPlacement) -> SiteGateway {
    SiteGateway { beside, log: 8 << 20, dram: 2 << 20, nvram: 1 << 20, ..SiteGateway::default() }
}

/// Returns the points to measure for Figure 5 of the outsourcing paper: a small cache at the host's
/// end of the link, at the node's end, and no cache.
pub(super) fn figure_5(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let places = [
        ("none", None),
        ("host", Some(GatewayPlacement::Host)),
        ("node", Some(GatewayPlacement::Node)),
    ];
    let delays: &[u32] = scale.pick(&[0, 8], &[0, 1, 2, 4, 8]);
    let mut points = Vec::new();
    for (place, beside) in places {
        for delay in delays {
            let way = StorageDistance::Delay(*delay);
            let site = way.over(mounted(volume(TIGHT), SYNC.1));
            let gateway = beside.map(small);
            let application = postmark(scale.pick(10, 100), scale.pick(20, 400));
            points.push(ExperimentPoint {
                name: format!("figure-5/{place}/{}", way.name()),
                site: LabSite { gateway, ..site },
                seconds: application.seconds(way, place == "host"),
                task: application.task,
                runs: 1,
                windows: false,
            });
        }
    }
    points
}

/// Returns the points to measure for Figure 6 of the outsourcing paper: caches of two sizes under
/// background traffic.
pub(super) fn figure_6(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let caches =
        [("none", None), ("small", Some(small(GatewayPlacement::Host))), ("large", Some(large()))];
    let loads: &[u32] = scale.pick(&[0, 70], &[0, 30, 50, 60, 70, 75]);
    let mut points = Vec::new();
    for (cache, gateway) in caches {
        for load in loads {
            let site = mounted(volume(TIGHT), SYNC.1);
            let is_cached = gateway.is_some();
            let application = postmark(scale.pick(10, 400), scale.pick(20, 1000));
            points.push(ExperimentPoint {
                name: format!("figure-6/{cache}/{load}"),
                site: LabSite { link: Some(backbone(*load)), gateway: gateway.clone(), ..site },
                seconds: application.seconds(StorageDistance::Delay(1), is_cached),
                task: application.task,
                runs: 1,
                windows: false,
            });
        }
    }
    points
}

/// Returns the points to measure for Figure 7 of the outsourcing paper: PostMark on a host with
/// little page cache. A gateway at the host's end of the link can cache a share of the files.
pub(super) fn figure_7(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    // Number of files of the workload, and their total size in bytes.
    let files = scale.pick(3000, 12_000);
    let set = u64::from(files) * (8 << 10);
    let mut points = Vec::new();
    let mut add = |name: String, link: SiteLink, percent: u64, way: StorageDistance| {
        let gateway = (percent > 0).then(|| SiteGateway {
            dram: (set * percent / 100).next_multiple_of(1 << 20),
            nvram: 1 << 20,
            // The gateway also answers reads from its log. Make the log as small as possible, so that the setting
            // `dram` determines which share of the files is cached.
            log: 8 << 20,
            ..SiteGateway::default()
        });
        let application = beyond_memory(files, scale.pick(300, 2000));
        points.push(ExperimentPoint {
            name,
            site: LabSite {
                link: Some(link),
                gateway,
                memory: little(scale),
                ..mounted(volume(scale.pick(TIGHT, 1024)), SOFT.1)
            },
            // A cache that holds a share of the files answers about the same share of the reads.
            seconds: application.seconds(way, false) * (1.0 - percent as f64 / 100.0),
            task: application.task,
            runs: 1,
            windows: false,
        });
    };
    let word = |percent: u64| match percent {
        0 => "none".to_owned(),
        percent => percent.to_string(),
    };
    // The paper's text states two numbers of this figure. A quick run measures only the points for
    // these.
    let delays: &[(u64, &[u32])] =
        scale.pick(&[(0, &[0, 8]), (60, &[8])], &[(0, &FAR), (10, &FAR), (30, &FAR), (60, &FAR)]);
    for (percent, delays) in delays {
        for delay in *delays {
            let name = format!("figure-7/delay/{}/{delay}ms", word(*percent));
            add(name, gigabit(*delay, JUMBO), *percent, StorageDistance::Delay(*delay));
        }
    }
    let loads: &[(u64, &[u32])] = scale.pick(
        &[(0, &[0, 70]), (30, &[70])],
        &[(0, &LOADED), (10, &LOADED), (30, &LOADED), (60, &LOADED)],
    );
    for (percent, loads) in loads {
        for load in *loads {
            let name = format!("figure-7/load/{}/{load}", word(*percent));
            add(name, backbone(*load), *percent, StorageDistance::Delay(1));
        }
    }
    points
}

/// Figure 7 of the outsourcing paper in a full run: the one-way delays in ms, and the background
/// loads in percent.
const FAR: [u32; 4] = [0, 2, 4, 8];
const LOADED: [u32; 4] = [0, 30, 55, 70];

/// Returns the points to measure for section 4.3.1 of the outsourcing paper: PostMark with frames
/// of 1.5 and 8 KB.
pub(super) fn mtu(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for delay in scale.pick(&[0][..], &[0, 1, 8]) {
        for mtu in [1500, JUMBO] {
            let site = mounted(volume(TIGHT), SYNC.1);
            let application = postmark(scale.pick(10, 100), scale.pick(20, 200));
            points.push(ExperimentPoint {
                name: format!("mtu/postmark/{mtu}/{delay}ms"),
                site: LabSite { link: Some(gigabit(*delay, mtu)), ..site },
                seconds: application.seconds(StorageDistance::Delay(*delay), false),
                task: application.task,
                runs: scale.pick(1, 3),
                windows: false,
            });
        }
    }
    points
}

/// The paper's window sizes: the word in the names of measured points, and bytes.
pub(super) const WINDOWS: [(&str, u64); 2] = [("64k", 64 << 10), ("640k", 640 << 10)];

/// Returns the points to measure for section 4.3.1 of the outsourcing paper: PostMark with TCP windows of 64 KB and of
/// 640 KB.
pub(super) fn window(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for (word, bytes) in WINDOWS {
        for delay in scale.pick(&[8][..], &[0, 1, 8]) {
            let way = StorageDistance::Delay(*delay);
            let mut site = way.over(mounted(volume(TIGHT), SYNC.1));
            site.session.socket_buffer = Some(bytes);
            let application = postmark(scale.pick(5, 50), scale.pick(10, 100));
            points.push(ExperimentPoint {
                name: format!("window/postmark/{word}/{delay}ms"),
                site,
                seconds: application.seconds(way, false),
                task: application.task,
                runs: scale.pick(1, 3),
                windows: false,
            });
        }
    }
    points
}
