//! The points that are measured. The report finds points by their names. HOW is iscsi (no gateway),
//! after-complete or immediate (a gateway at the host with this report mode):
//!
//! - `figure-6/POOL/BLOCK/HOW`: PostMark at 100 Mbit/s; POOL is small or large, BLOCK 512, 1024,
//!   2048 or 4096. The counts of Tables 3 to 6 are those of `figure-6/small/4096/HOW`.
//! - `figure-7/POOL/BLOCK/HOW`: PostMark at 1 Gbit/s.
//! - `figure-8/ACCESS/SIZE/HOW`: random reads or writes on a device, synchronous, 100 Mbit/s;
//!   ACCESS is read or write, SIZE 1k to 32k.
//! - `figure-9/ACCESS/HOW`: fio like vxbench, 8 KiB at random addresses of a device, 100 Mbit/s;
//!   ACCESS is write or mixed. Figure 10 is the processor time of these runs.
//! - `figure-11/HOW`: the trace at 1 Gbit/s; Figure 12 is its histogram.
//! - `table-8/NODES/BLOCK/HOW`: PostMark on 1 to 4 nodes concurrently, 1 Gbit/s.

use std::collections::BTreeMap;

use workload::{
    Fio, FioShape, Micro, MicroAccess, MicroAccessPattern, Postmark, TraceWorkload, WorkloadTask,
};

use crate::{ExperimentPoint, ExperimentScale, Host, LabSite, SiteDisk, SiteGateway, SiteLink};

/// The ways to access the storage: the word in the names of measured points, and the report mode of
/// the gateway if there is one.
pub(super) const HOWS: [(&str, Option<&str>); 3] =
    [("iscsi", None), ("after-complete", Some("after-complete")), ("immediate", Some("immediate"))];

/// The file pools of PostMark in section 5.3.1, by the words in the names of measured points.
pub(super) const POOLS: [&str; 2] = ["small", "large"];

/// Record sizes of Figure 8, in KiB.
pub(super) const SIZES_KIB: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// Returns all points in the order in which they are run. Points with the same site are adjacent.
#[must_use]
pub fn points(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    [
        postmark("figure-6", MBIT_100, scale),
        postmark("figure-7", GBIT, scale),
        device(scale),
        trace(scale),
        nodes(scale),
    ]
    .concat()
}

const MBIT_100: u64 = 100_000_000;
const GBIT: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// Returns the points to measure for Figure 6 or 7 of the STICS paper: PostMark over a link of this
/// rate.
fn postmark(figure: &str, rate: u64, scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for (how, report) in HOWS {
        let site = mounted(rate, report, 256);
        for pool in POOLS {
            for block in blocks(scale) {
                let (task, seconds) = pool_of(pool, block, scale);
                points.push(ExperimentPoint {
                    name: format!("{figure}/{pool}/{block}/{how}"),
                    site: site.clone(),
                    task,
                    runs: 1,
                    seconds: if report.is_none() { seconds } else { seconds / 8.0 },
                    windows: false,
                });
            }
        }
    }
    points
}

/// Returns the block sizes of PostMark, in bytes.
pub(super) fn blocks(scale: ExperimentScale) -> Vec<u32> {
    scale.pick(vec![512, 4096], vec![512, 1024, 2048, 4096])
}

/// Returns PostMark with one of the file pools, and the estimated seconds without a gateway. The
/// pools are smaller than the paper's (1,000 files and 50,000 transactions; 20,000 files and
/// 100,000), since here each write is synchronous, and the paper's file system wrote
/// asynchronously.
fn pool_of(pool: &str, block: u32, scale: ExperimentScale) -> (WorkloadTask, f64) {
    let (files, transactions, seconds) = match (scale, pool) {
        (ExperimentScale::Quick, "small") => (20, 60, 8.0),
        (ExperimentScale::Quick, _) => (60, 80, 14.0),
        (ExperimentScale::Full, "small") => (100, 1000, 90.0),
        (ExperimentScale::Full, _) => (1000, 1000, 200.0),
    };
    (
        WorkloadTask::Postmark(Postmark { files, transactions, block, ..Postmark::default() }),
        seconds,
    )
}

/// Returns the points to measure for Figures 8 and 9 of the STICS paper: records of several sizes
/// at random positions of a device.
fn device(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let set_mib = scale.pick(32, 512);
    let seconds = scale.pick(3, 15);
    let sizes = scale.pick(vec![1, 4, 32], SIZES_KIB.to_vec());
    let mut points = Vec::new();
    for (how, report) in HOWS.into_iter().take(2) {
        let site = LabSite { host: Host::Device, ..site(MBIT_100, report, u64::from(set_mib) * 2) };
        for (name, access) in [("write", MicroAccess::Write), ("read", MicroAccess::Read)] {
            // These runs leave much dirty data: the node's disk needs many seconds for the writes that a gateway
            // accepts in one second. In a full run each of these points is therefore measured for a shorter time than
            // the others, and only once.
            let is_kept = report.is_some() && access == MicroAccess::Write;
            let measured = if is_kept { scale.pick(seconds, 5) } else { seconds };
            for block_kib in sizes.clone() {
                let task = Micro {
                    access,
                    pattern: MicroAccessPattern::Random,
                    block_kib,
                    set_mib,
                    seconds: measured,
                    stable: true,
                    ..Micro::default()
                };
                points.push(ExperimentPoint {
                    name: format!("figure-8/{name}/{block_kib}k/{how}"),
                    site: site.clone(),
                    task: WorkloadTask::Micro(task),
                    runs: if is_kept { 1 } else { scale.pick(1, 3) },
                    // The estimate includes the time to write the set before reads, and to read it
                    // back after writes.
                    seconds: f64::from(measured) * if is_kept { 1.0 + DRAINED } else { 1.0 } + 3.0,
                    windows: false,
                });
            }
        }
        for (name, reads) in [("write", 0), ("mixed", 50)] {
            // In a full run the range has twice the capacity of the log.
            let (size_mib, seconds) = scale.pick((16, 3), (256, 30));
            let drained = if report.is_some() { scale.pick(10.0, 120.0) } else { 0.0 };
            let task = Fio {
                shape: FioShape::Vxbench,
                reads: Some(reads),
                size_mib,
                seconds,
                // Use direct I/O, since this machine's page cache would absorb the writes. The paper's host had a file
                // system whose page cache was full.
                direct: Some(true),
                ..Fio::default()
            };
            points.push(ExperimentPoint {
                name: format!("figure-9/{name}/{how}"),
                site: site.clone(),
                task: WorkloadTask::Fio(task),
                runs: 1,
                // The time includes writing the range before the measurement and comparing it
                // afterwards, both at the link's rate.
                seconds: f64::from(seconds) + f64::from(size_mib) / 4.0 + drained,
                windows: false,
            });
        }
    }
    points
}

/// Number of seconds in which the node's disk writes the data that a gateway accepts in one second. These are some 2000
/// random blocks. The disk needs 8 ms for each, and the log drops those that are overwritten before they are sent.
const DRAINED: f64 = 9.0;

/// Returns the points to measure for Figures 11 and 12 of the STICS paper: the trace.
fn trace(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let requests = scale.pick(3000, TraceWorkload::default().requests);
    let point = |(how, report)| {
        // The volume has 1 GiB, since the trace accesses 900 MB. With a link of 1 Gbit/s, the disk and not the link
        // limits the rate.
        let mut site = LabSite { host: Host::Device, ..site(GBIT, report, 1024) };
        // Give the disk two arms. With one arm it could serve only a third of the requests, and its
        // queue would grow without bound. The paper's requests came through a file system, which
        // absorbed some of them.
        site.disk.more.insert("arms".to_owned(), "2".to_owned());
        ExperimentPoint {
            name: format!("figure-11/{how}"),
            site,
            task: WorkloadTask::Trace(TraceWorkload {
                requests,
                check: scale.pick(100, 1000),
                ..TraceWorkload::default()
            }),
            runs: 1,
            seconds: requests as f64 / 333.0 + 3.0,
            windows: false,
        }
    };
    HOWS.into_iter().map(point).collect()
}

/// Returns the points to measure for Table 8 of the STICS paper: PostMark on several nodes
/// concurrently.
fn nodes(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let mut points = Vec::new();
    for nodes in 1..=4 {
        for (how, report) in HOWS.into_iter().take(2) {
            let site = LabSite { nodes, ..mounted(GBIT, report, 128) };
            for block in blocks(scale).into_iter().rev().take(scale.pick(1, 4)) {
                let (task, seconds) = pool_of("small", block, scale);
                points.push(ExperimentPoint {
                    name: format!("table-8/{nodes}/{block}/{how}"),
                    site: site.clone(),
                    task,
                    runs: 1,
                    seconds: if report.is_none() { seconds } else { seconds / 4.0 },
                    windows: false,
                });
            }
        }
    }
    points
}

/// Returns a site with a file system that writes synchronously: each write waits until its data is on the disk or in
/// the gateway. Otherwise the host would cache all writes, since this machine has far more memory than the paper's
/// host.
fn mounted(rate: u64, report: Option<&str>, mib: u64) -> LabSite {
    LabSite { host: Host::Mounted("sync,dirsync".to_owned()), ..site(rate, report, mib) }
}

/// Returns the paper's testbed (section 5.1): a switch, a node with an IBM O7N3200, and optionally
/// a gateway at the host.
fn site(rate: u64, report: Option<&str>, mib: u64) -> LabSite {
    let protected = [("cache_protected".to_owned(), "true".to_owned())];
    let disk = SiteDisk {
        model: Some("ibm-07n3200".to_owned()),
        // The paper's ext2 sends no flush, so data in the disk's cache is considered written.
        more: BTreeMap::from(protected),
        ..SiteDisk::default()
    };
    let line = SiteLink::alike(wan::DirectionSettings {
        rate: Some(rate),
        ..wan::DirectionSettings::default()
    });
    LabSite {
        disk,
        bytes: mib * MIB,
        link: Some(line),
        gateway: report.map(gateway),
        ..LabSite::default()
    }
}

/// Returns the gateway of section 5.1: 4 MB of memory as NVRAM, 16 MB as read cache, and a disk for
/// the log. It destages at a threshold or when it is idle.
fn gateway(report: &str) -> SiteGateway {
    let more = [("destage_idle", "1s"), ("dirty_age", "60s")];
    SiteGateway {
        report: report.to_owned(),
        log: 128 * MIB,
        dram: 16 * MIB,
        nvram: 4 * MIB,
        more: more.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        ..SiteGateway::default()
    }
}
