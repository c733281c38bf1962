//! The numbers of "Obtaining High Performance for Storage Outsourcing": SCSI over IP between two PCs with FreeBSD 3.4,
//! with one-way delays up to 8 ms, and over routers with background traffic.

use super::{Misprint, PaperFigure, PaperStatement};

/// The disks of Table 1, by the words in the names of measured points.
pub const DISKS: [&str; 4] = ["dnes", "ddys", "array", "null"];

/// The names of [`DISKS`] in a report.
pub const DISKS_SHOWN: [&str; 4] =
    ["1 disk, IBM DNES", "1 disk, IBM DDYS", "disk array, 8 DDYS", "null device"];

/// The kinds of access in Table 1, in the order of its columns.
pub const ACCESSES: [&str; 4] =
    ["random-read", "random-write", "sequential-read", "sequential-write"];

/// The rows of Table 1 and Table 2: a local disk of the host, a disk of the gateway without the network, and one-way
/// delays.
pub const WAYS: [&str; 7] = ["local", "target", "0ms", "1ms", "2ms", "4ms", "8ms"];

/// One-way delays in ms of the last five rows of [`WAYS`].
pub const DELAYS_MS: [f64; 5] = [0.0, 1.0, 2.0, 4.0, 8.0];

/// Bytes of a request of Table 1.
pub const REQUEST_BYTES: f64 = 8192.0;

/// Number of bytes in a MB of the paper (the only value with which its Table 1 is consistent).
pub const MB: f64 = 1000.0 * 1024.0;

/// Outsourcing paper, Table 1, lower half: response time of an 8 KiB request, ms. Each row is one
/// of [`WAYS`] and has the [`ACCESSES`] of each of [`DISKS`].
#[rustfmt::skip]
pub const RESPONSE_MS: [[[f64; 4]; 4]; 7] = [
    [[10.38, 11.44, 0.57, 0.40], [7.50, 5.10, 0.24, 0.27], [7.89, 2.37, 0.41, 0.47], [0.01, 0.00, 0.01, 0.00]],
    [[10.50, 11.45, 0.60, 0.42], [7.60, 5.70, 0.28, 0.27], [8.02, 2.55, 0.62, 0.62], [0.16, 0.16, 0.15, 0.15]],
    [[10.99, 11.38, 0.81, 0.82], [8.24, 5.61, 0.77, 0.81], [8.43, 2.74, 0.94, 0.95], [0.44, 0.43, 0.45, 0.42]],
    [[12.94, 11.48, 2.82, 2.77], [10.09, 5.71, 2.67, 2.75], [10.35, 3.00, 3.22, 2.89], [2.46, 2.46, 2.44, 2.44]],
    [[15.11, 11.44, 4.86, 4.80], [12.21, 5.67, 4.71, 4.80], [12.82, 5.02, 5.08, 4.92], [4.48, 4.52, 4.46, 4.40]],
    [[19.04, 11.89, 8.92, 8.82], [16.29, 8.93, 8.79, 8.86], [17.13, 9.06, 9.08, 9.09], [8.43, 8.42, 8.50, 8.41]],
    [[27.18, 17.47, 17.10, 17.04], [24.46, 17.09, 16.99, 17.02], [25.32, 17.20, 17.17, 17.20], [17.20, 17.35, 17.35, 17.35]],
];

/// Outsourcing paper, Table 1, upper half: throughput in the paper's MB/s, in the order of
/// [`RESPONSE_MS`].
#[rustfmt::skip]
#[expect(clippy::approx_constant, reason = "3.14 MB/s is what Table 1 prints")]
pub const THROUGHPUT_MB_S: [[[f64; 4]; 4]; 7] = [
    [[0.77, 0.70, 13.94, 20.00], [1.07, 1.57, 34.04, 29.40], [1.01, 3.38, 19.52, 16.94], [1224.18, 2501.56, 1436.52, 3555.56]],
    [[0.76, 0.70, 13.26, 19.19], [1.05, 1.40, 28.97, 29.86], [1.00, 3.14, 12.83, 12.94], [49.02, 51.22, 52.51, 51.85]],
    [[0.73, 0.70, 9.86, 9.75], [0.97, 1.43, 10.40, 9.93], [0.95, 2.92, 8.48, 8.43], [18.16, 18.71, 17.96, 19.17]],
    [[0.62, 0.70, 2.84, 2.89], [0.79, 1.40, 3.00, 2.91], [0.77, 2.67, 2.48, 2.77], [3.25, 3.26, 3.28, 3.29]],
    [[0.53, 0.70, 1.65, 1.67], [0.66, 1.41, 1.70, 1.67], [0.62, 1.59, 1.58, 1.63], [1.79, 1.77, 1.80, 1.82]],
    [[0.42, 0.67, 0.90, 0.91], [0.49, 0.90, 0.91, 0.90], [0.47, 0.88, 0.88, 0.88], [0.95, 0.95, 0.94, 0.95]],
    [[0.29, 0.46, 0.47, 0.47], [0.33, 0.47, 0.47, 0.47], [0.32, 0.47, 0.47, 0.47], [0.47, 0.46, 0.46, 0.46]],
];

/// Outsourcing paper, section 4.1, in the text: throughput of the null device at 0 ms with requests
/// of 64 KB, MB/s.
pub const NULL_64K_MB_S: f64 = 30.0;

/// The response time of each of [`DISKS`] for a write that its cache accepts, ms. For single disks
/// it is the time of sequential writes to the local disk. For the array it is 0.6, about the time
/// of a cache hit without the network (0.62).
pub const ANSWER_MS: [f64; 4] = [0.40, 0.27, 0.6, 0.0];

/// Outsourcing paper, Figure 2: the sum of all components, `T_iSCSI` in the paper's equation (1),
/// in ms.
pub const ISCSI_MS: f64 = 0.408;

/// Outsourcing paper, Figure 2: the time of each component for data of 64 bytes, 1.5 KB and 8 KB,
/// µs.
pub const COMPONENTS_US: [(&str, [f64; 3]); 4] = [
    ("gateway process", [10.0, 12.0, 12.0]),
    ("SCSI", [1.0, 11.0, 52.0]),
    ("TCP/IP", [15.0, 21.0, 60.0]),
    ("switch", [27.0, 50.0, 81.0]),
];

/// Outsourcing paper, Figure 2: the disk's part of the time for 8 KB, in ms: cache hit and random
/// block, for the array and for a DDYS.
pub const DISK_MS: [(&str, [f64; 2]); 2] = [("array", [0.38, 6.44]), ("DDYS", [0.29, 5.09])];

/// A column of the paper's Table 2: an application and its performance at each distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperApplication {
    /// Workload and file system, as in the points' names: "postmark/soft". Columns that we do not
    /// measure have names of the same form.
    pub name: &'static str,
    /// The name of the column in our report.
    pub shown: &'static str,
    pub unit: &'static str,
    /// The performance with a local disk array of the host.
    pub local: f64,
    /// The performance as shares of `local`: with a disk of the gateway, and at each of
    /// [`DELAYS_MS`].
    pub shares: [f64; 6],
}

const fn application(
    name: &'static str,
    shown: &'static str,
    unit: &'static str,
    local: f64,
    shares: [f64; 6],
) -> PaperApplication {
    PaperApplication { name, shown, unit, local, shares }
}

/// Outsourcing paper, Table 2: performance of applications for each one-way delay.
#[rustfmt::skip]
pub const APPLICATIONS: [PaperApplication; 16] = [
    application("build/soft", "SSH build, Soft Updates", "1/h", 67.3, [0.94, 0.89, 0.87, 0.83, 0.78, 0.69]),
    application("build/sync", "SSH build, FFS", "1/h", 60.0, [0.96, 0.98, 0.90, 0.74, 0.61, 0.49]),
    application("sdet/soft", "SDET, Soft Updates", "1/h", 4253.7, [0.94, 0.70, 0.33, 0.18, 0.10, 0.05]),
    application("sdet/sync", "SDET, FFS", "1/h", 3376.9, [0.84, 0.49, 0.15, 0.08, 0.04, 0.02]),
    application("postmark/soft", "PostMark, Soft Updates", "1/s", 386.2, [0.91, 0.56, 0.20, 0.11, 0.06, 0.03]),
    application("postmark/sync", "PostMark, FFS", "1/s", 361.9, [0.95, 0.57, 0.17, 0.14, 0.07, 0.03]),
    application("surge/soft", "Surge, Soft Updates", "1/s", 3058.0, [0.96, 0.97, 0.92, 0.90, 0.89, 0.86]),
    application("surge/sync", "Surge, FFS", "1/s", 2765.9, [0.96, 0.84, 0.84, 0.92, 0.92, 0.88]),
    application("postmark/w2000-fat", "PostMark, Windows 2000, FAT", "1/s", 326.3, [0.96, 0.70, 0.42, 0.28, 0.14, 0.07]),
    application("postmark/w2000-ntfs", "PostMark, Windows 2000, NTFS", "1/s", 237.6, [0.89, 0.55, 0.31, 0.25, 0.13, 0.07]),
    application("tpcc/w2000-fat", "TPC-C, Windows 2000, FAT", "1/min", 730.7, [1.01, 1.00, 0.99, 0.98, 0.93, 0.88]),
    application("tpcc/w2000-ntfs", "TPC-C, Windows 2000, NTFS", "1/min", 727.1, [1.02, 1.02, 1.04, 0.97, 0.93, 0.89]),
    application("postmark/nt-fat", "PostMark, Windows NT, FAT", "1/s", 80.0, [0.98, 0.94, 0.74, 0.50, 0.32, 0.17]),
    application("postmark/nt-ntfs", "PostMark, Windows NT, NTFS", "1/s", 61.7, [0.91, 0.92, 0.79, 0.54, 0.35, 0.19]),
    application("tpcc/nt-fat", "TPC-C, Windows NT, FAT", "1/min", 750.1, [0.95, 0.94, 0.93, 0.93, 0.88, 0.82]),
    application("tpcc/nt-ntfs", "TPC-C, Windows NT, NTFS", "1/min", 733.5, [0.97, 0.95, 0.94, 0.93, 0.90, 0.84]),
];

/// Returns the column of Table 2 that is named `name`; `None` if there is none.
#[must_use]
pub fn application_named(name: &str) -> Option<&'static PaperApplication> {
    APPLICATIONS.iter().find(|one| one.name == name)
}

/// A row of Table 3: background traffic on a backbone of 155 Mbit/s, and the performance of
/// applications under it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperCongestion {
    /// Load of the link in percent.
    pub load: u32,
    /// Mean and deviation of the background traffic, Mbit/s.
    pub background: [f64; 2],
    /// Mean round trip time in milliseconds.
    pub round_trip_ms: f64,
    /// Share of packets that are lost.
    pub loss: f64,
    /// PostMark on FFS, on Soft Updates and on NTFS (Windows NT), transactions per second; not measured at 75
    /// percent.
    pub postmark: Option<[f64; 3]>,
    /// TPC-C on NTFS (Windows NT), transactions per minute.
    pub tpcc: f64,
}

const fn congestion(
    load: u32,
    background: [f64; 2],
    round_trip_ms: f64,
    loss: f64,
    postmark: Option<[f64; 3]>,
    tpcc: f64,
) -> PaperCongestion {
    PaperCongestion { load, background, round_trip_ms, loss, postmark, tpcc }
}

/// Outsourcing paper, Table 3: applications under congestion.
pub const CONGESTION: [PaperCongestion; 10] = [
    congestion(0, [0.0, 0.0], 0.46, 0.0, Some([64.0, 80.0, 52.0]), 722.0),
    congestion(20, [31.0, 9.8], 0.54, 0.0, Some([63.0, 79.0, 49.0]), 719.0),
    congestion(30, [40.0, 11.7], 0.54, 2e-6, Some([60.0, 75.0, 46.0]), 720.0),
    congestion(35, [43.0, 12.3], 0.55, 5e-6, Some([59.0, 74.0, 48.0]), 718.0),
    congestion(40, [56.0, 12.7], 0.64, 2e-5, Some([56.0, 73.0, 47.0]), 719.0),
    congestion(50, [76.0, 12.8], 0.70, 5e-5, Some([53.0, 72.0, 47.0]), 717.0),
    congestion(55, [86.0, 12.8], 0.72, 7e-5, Some([51.0, 63.0, 46.0]), 710.0),
    congestion(60, [96.0, 12.8], 0.78, 1e-4, Some([44.0, 54.0, 42.0]), 700.0),
    congestion(70, [106.0, 12.8], 1.07, 3e-4, Some([26.0, 29.0, 26.0]), 693.0),
    congestion(75, [110.0, 12.8], 1.68, 7e-4, None, 668.0),
];

/// Outsourcing paper, section 4.3.1: time of a random write of 8 KB with an MTU of 1.5 KB divided by the time with 8
/// KB: 15 percent more.
pub const MTU_RANDOM_WRITE: f64 = 1.15;

/// Outsourcing paper, section 4.3.1: `T_iSCSI` with an MTU of 1.5 KB, ms. The value with 8 KB is
/// [`ISCSI_MS`].
pub const ISCSI_SMALL_MTU_MS: f64 = 0.461;

/// Outsourcing paper, section 4.3.1: the share of performance that an application keeps with an MTU of 1.5 KB instead
/// of 8 KB, at a short delay.
pub const MTU_APPLICATIONS: PaperFigure = PaperFigure {
    place: "Section 4.3.1",
    what: "throughput with an MTU of 1.5 KB by that with 8 KB, short delays",
    least: 0.91,
    most: 0.99,
};

/// Outsourcing paper, section 4.3.1: ratio of the performance with a window of 64 KB to that with
/// 640 KB.
pub const WINDOW: PaperStatement = PaperStatement {
    place: "Section 4.3.1",
    what: "64 KB by 640 KB",
    said: "does not harm performance",
    least: 0.96,
    most: f64::INFINITY,
};

/// Outsourcing paper, Figure 4 (section 4.3.3): the effect of the delay on the array, compared with
/// one disk.
pub const FIGURE_4: PaperStatement = PaperStatement {
    place: "Figure 4, section 4.3.3",
    what: "what SDET keeps of 0 ms at 8 ms on the array, by what it keeps on one disk",
    said: "much more sensitive to network delay",
    least: f64::NEG_INFINITY,
    most: 0.9,
};

/// Outsourcing paper, Figure 5 (section 4.4.1): how much of the delay a cache at the host's end of
/// the link hides.
pub const FIGURE_5_HOST: PaperStatement = PaperStatement {
    place: "Figure 5, section 4.4.1",
    what: "with a cache at the host, 8 ms by 0 ms",
    said: "can hide almost all of the network latency",
    least: 0.9,
    most: f64::INFINITY,
};

/// Outsourcing paper, Figure 5: a cache at the node compared with no cache.
pub const FIGURE_5_NODE: PaperStatement = PaperStatement {
    place: "Figure 5, section 4.4.1",
    what: "with a cache at the node by none",
    said: "coincide",
    least: 0.9,
    most: 1.1,
};

/// Outsourcing paper, Figure 6 (section 4.4.2), from the text: the background load, percent, above
/// which bandwidth limits PostMark, for caches of these percentages of its working set.
pub const FIGURE_6_BOUND_AT: [(&str, f64); 3] = [("none", 55.0), ("0.1", 30.0), ("10", 55.0)];

/// Outsourcing paper, Figure 6: the share of writes that a cache of 10 percent absorbs.
pub const FIGURE_6_FILTERED: PaperFigure = PaperFigure::number(
    "Figure 6, section 4.4.2",
    "share of writes that a cache of 10 % keeps from the link",
    0.40,
);

/// Outsourcing paper, Figure 7 (section 4.4.3), from the text: transactions per second without a
/// cache and without background traffic.
pub const FIGURE_7_PLAIN: f64 = 50.0;

/// Outsourcing paper, Figure 7: percentage of the working set that a cache must hold to keep [`FIGURE_7_PLAIN`] at a
/// load of 70 percent.
pub const FIGURE_7_CACHE_AT_70: u32 = 30;

/// Outsourcing paper, Figure 7: performance with a cache of [`FIGURE_7_CACHE_AT_70`], relative to
/// the performance without cache, load and delay.
pub const FIGURE_7_TOLERATED: PaperStatement = PaperStatement {
    place: "Figure 7, section 4.4.3",
    what: "performance by that without cache, load and delay",
    said: "similar performance",
    least: 0.9,
    most: f64::INFINITY,
};

/// Outsourcing paper, Figure 7: percentage of the working set that a cache must hold to hide 8 ms.
pub const FIGURE_7_CACHE_AT_8_MS: u32 = 60;

/// Outsourcing paper, Figure 7: performance with a cache of [`FIGURE_7_CACHE_AT_8_MS`], relative to
/// the performance without cache, load and delay.
pub const FIGURE_7_MASKED: PaperStatement =
    PaperStatement { said: "to mask a one-way propagation delay of 8 ms", ..FIGURE_7_TOLERATED };

pub const MISPRINTS: &[Misprint] = &[
    Misprint {
        place: "Section 4.1",
        printed: "34.04, 10.4 and 3.00 MB/s as sequential writes to a DDYS",
        taken: "in Table 1 they are its sequential reads; the writes are 29.40, 9.93 and 2.91",
    },
    Misprint {
        place: "Section 4.1",
        printed: "that the array does not mask the network's delay",
        taken: "Table 1 has its random writes at 3.00, 5.02, 9.06 and 17.20 ms, 0.04 to 1.78 ms below equation (1): they \
                are masked like those of single disks, with 0.6 ms for the cache's answer",
    },
    Misprint {
        place: "Section 4.4.2",
        printed: "256 KB as 0.1 % of PostMark's set",
        taken: "0.1 % of 500 MB is 512 KB",
    },
    Misprint {
        place: "Section 4.3",
        printed: "that PostMark runs 22 to 33 % faster with Soft Updates under all network delays",
        taken: "by Table 2 it is 7 % on the local disk and at 8 ms and 26 % at 1 ms, and at 2 and 4 ms FFS is the faster",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_is_the_request_by_the_response_time() {
        let mut checked = 0;
        for (times, rates) in RESPONSE_MS.iter().flatten().zip(THROUGHPUT_MB_S.iter().flatten()) {
            for (ms, rate) in times.iter().zip(rates) {
                // Skip the times of the local null device. They are printed as 0.00 and 0.01 ms,
                // which is too coarse to compute a throughput.
                if *ms < 0.1 {
                    continue;
                }
                let [low, high] =
                    [ms + 0.006, ms - 0.006].map(|ms| REQUEST_BYTES / MB / (ms / 1000.0));
                assert!((low - 0.006..=high + 0.006).contains(rate), "{ms} ms, {rate} MB/s");
                checked += 1;
            }
        }
        assert_eq!(checked, 108);
    }

    #[test]
    fn the_parts_of_figure_2_add_up_to_the_constant_of_equation_1() {
        let [gateway, scsi, ip, switch] = COMPONENTS_US.map(|(_, us)| us);
        let data = 2.0 * (scsi[2] + gateway[2] + ip[2]) + switch[2];
        let answer = 2.0 * (scsi[0] + gateway[0] + ip[0]) + switch[0];
        assert_eq!((data + answer) / 1000.0, ISCSI_MS);
    }

    #[test]
    fn applications_are_found_by_the_names_of_points() {
        assert_eq!(application_named("surge/soft").map(|one| one.local), Some(3058.0));
        assert_eq!(application_named("postmark/nt-ntfs").map(|one| one.shares[5]), Some(0.19));
        assert_eq!(application_named("tpcc/soft"), None);
    }
}
