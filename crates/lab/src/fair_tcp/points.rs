//! The points that are measured. The report finds points by their names. WINDOWS is reno, each (our program with a
//! window for each connection), ensemble, cubic, bbr or model (an ensemble with a path model); WAY is the one-way
//! delay: 0ms to 10ms.
//!
//! - `writes/WINDOWS/WAY`, `reads/WINDOWS/WAY`: commands of 128 KiB, 32 at a time.
//! - `in-turn/WINDOWS/WAY`: the same writes, distributed round-robin over the connections, for reno and ensemble; in
//!   a full run at 4 ms for each, too.
//! - `per-ack/WINDOWS/WAY`: the same writes if windows grow by acknowledgments, for each and ensemble.
//! - `file-writes-SIZE/WINDOWS/WAY`, `file-reads-SIZE/WINDOWS/WAY`: a file on ext4 from its beginning to its end, in
//!   calls of this size: 4k, 16k, 64k. Reads only in a full run.
//! - `postmark-1/WINDOWS/WAY`, `postmark-10/WINDOWS/WAY`: PostMark on ext4 with one or ten processes.
//! - `bonnie-1/WINDOWS/WAY`, `bonnie-4/WINDOWS/WAY`: Bonnie++ on ext4 with one or four processes; only in a full run,
//!   like the next.
//! - `build/WINDOWS/WAY`: a software build on ext4.

use std::time::Duration;

use wan::PacketLossModel;
use workload::{Bonnie, Build, CommandsWorkload, Fio, FioShape, Postmark, WorkloadTask};

use crate::{
    ExperimentPoint, ExperimentScale, Host, LabSite, SiteLink, SiteSession, paper::fair_tcp::LOSS,
};

/// The kinds of windows: the word in the names of measured points, and the value of the setting
/// `congestion`.
pub(super) const ALL: [(&str, &str); 6] = [
    ("reno", "reno"),
    ("each", "ensemble per connection"),
    ("ensemble", "ensemble"),
    ("cubic", "cubic"),
    ("bbr", "bbr"),
    ("model", "ensemble by model"),
];

/// The two kinds of windows that the paper compares. Whole applications are measured with these
/// only.
pub(super) const BOTH: [(&str, &str); 2] = [ALL[0], ALL[2]];

/// Kinds of windows that grow with each acknowledgment, as in Linux 2.4.
pub(super) const PER_ACK: [(&str, &str); 2] =
    [("each", "ensemble per connection per ack"), ("ensemble", "ensemble per ack")];

/// The baseline: our program with a window for each connection. An ensemble differs only in that its connections share
/// one window.
const EACH: [(&str, &str); 1] = [ALL[1]];

/// Sizes of the calls in KiB (Figures 7 and 8). None is shorter than a page: the kernel would then read each page of an
/// existing file first, and the paper wrote to a new file.
pub(super) const CALLS_KIB: [u32; 3] = [4, 16, 64];

/// The delays of the paper, in milliseconds.
pub(super) const DELAYS: [u32; 6] = [0, 2, 4, 6, 8, 10];
/// The delays of a quick run, in milliseconds.
const FEW: [u32; 3] = [0, 4, 10];
/// The only delay of some points in a quick run, in milliseconds. It is the delay of the paper's
/// Figures 2 and 3.
const ONE: [u32; 1] = [4];

/// Returns all points, in the order in which they are run: points with the same site are adjacent.
#[must_use]
pub fn points(scale: ExperimentScale) -> Vec<ExperimentPoint> {
    let many: &[u32] = scale.pick(&FEW, &DELAYS);
    let few: &[u32] = scale.pick(&ONE, &DELAYS);
    let mut points = vec![];
    let mut add =
        |experiment: &str, delays: &[u32], windows: &[(&str, &str)], of: &FairTcpSweep| {
            for (name, congestion) in windows {
                points.extend(delays.iter().map(|delay| ExperimentPoint {
                    name: format!("{experiment}/{name}/{delay}ms"),
                    site: of.use_.site(congestion, *delay),
                    task: (of.task)(congestion),
                    runs: of.runs,
                    seconds: of.seconds,
                    windows: of.windows,
                }));
            }
        };
    let length = scale.pick(8.0, 30.0);
    let send = |use_: FairTcpTraffic, runs: u32, extra: f64| FairTcpSweep {
        use_,
        task: Box::new(move |congestion| {
            WorkloadTask::Commands(commands(congestion, use_ == FairTcpTraffic::Reads, length))
        }),
        runs,
        // The 6 s are for the login and the warm-up before the measurement, and for the data in
        // flight at its end.
        seconds: length + 6.0 + extra,
        windows: use_ == FairTcpTraffic::Writes,
    };
    let (known, model) = ALL.split_at(ALL.len() - 1);
    add("writes", many, known, &send(FairTcpTraffic::Writes, scale.pick(1, 3), 0.0));
    // Measure each of these points only once. With three runs of each, the experiment would take more than three hours.
    add("writes", many, model, &send(FairTcpTraffic::Writes, 1, 0.0));
    let in_turn = FairTcpSweep {
        task: Box::new(move |congestion| {
            WorkloadTask::Commands(CommandsWorkload {
                in_turn: true,
                ..commands(congestion, false, length)
            })
        }),
        windows: false,
        ..send(FairTcpTraffic::Writes, 1, 0.0)
    };
    add("in-turn", few, &BOTH, &in_turn);
    if scale == ExperimentScale::Full {
        add("in-turn", &ONE, &EACH, &in_turn);
    }
    add("per-ack", many, &PER_ACK, &send(FairTcpTraffic::Writes, 1, 0.0));
    // The estimated time is 6 s longer than that of writes, since the blocks must be written before they are read.
    add("reads", few, &BOTH, &send(FairTcpTraffic::Reads, 1, 6.0));
    for size in scale.pick(&[4, 64][..], &CALLS_KIB) {
        let at: &[u32] = scale.pick(&ONE, &FEW);
        // Estimated seconds to write, measure and read back the file, at half of the throughput that a link with a
        // delay of 4 ms allows.
        let seconds = scale.pick(8.0, 22.0);
        add(
            &file_calls("writes", *size),
            at,
            &BOTH,
            &files(FairTcpTraffic::Files, calls(scale, 0, *size), seconds),
        );
        if scale == ExperimentScale::Full {
            let of = files(FairTcpTraffic::Files, calls(scale, 100, *size), seconds);
            add(&file_calls("reads", *size), at, &BOTH, &of);
        }
    }
    for processes in [1, 10] {
        let of = files(FairTcpTraffic::Cramped, postmark(scale, processes), scale.pick(25.0, 90.0));
        add(&format!("postmark-{processes}"), few, &BOTH, &of);
    }
    if scale == ExperimentScale::Full {
        for processes in [1, 4] {
            let of = files(FairTcpTraffic::Cramped, bonnie(processes), 120.0);
            add(&format!("bonnie-{processes}"), &FEW, &BOTH, &of);
        }
        add(
            "build",
            few,
            &BOTH,
            &files(FairTcpTraffic::Files, WorkloadTask::Build(Build::default()), 90.0),
        );
    }
    points
}

/// A workload that is measured with several one-way delays and several kinds of congestion windows.
struct FairTcpSweep {
    use_: FairTcpTraffic,
    task: Box<dyn Fn(&str) -> WorkloadTask>,
    runs: u32,
    seconds: f64,
    windows: bool,
}

/// The direction in which the workload sends data. The link loses packets in the same direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FairTcpTraffic {
    Writes,
    Reads,
    /// Reads and writes by a file system, so that data travels in both directions.
    Files,
    /// A file system on a host whose memory is smaller than the files, which therefore reads and writes over the link.
    /// The paper's host had 256 MB for 4 GB.
    Cramped,
}

impl FairTcpTraffic {
    /// Returns the testbed of the paper (section 3.2) with this congestion control and one-way delay.
    fn site(self, congestion: &str, delay_ms: u32) -> LabSite {
        let delay = Duration::from_millis(delay_ms.into());
        let clear = wan::DirectionSettings { delay, ..wan::DirectionSettings::default() };
        let lossy = wan::DirectionSettings { loss: PacketLossModel::Random(LOSS), ..clear.clone() };
        let (near_to_far, far_to_near) = match self {
            Self::Writes => (lossy, clear),
            Self::Reads => (clear, lossy),
            Self::Files | Self::Cramped => (lossy.clone(), lossy),
        };
        let host = match self {
            Self::Writes | Self::Reads => Host::Url,
            Self::Files | Self::Cramped => Host::Mounted(String::new()),
        };
        LabSite {
            bytes: if host == Host::Url { 128 << 20 } else { 1 << 30 },
            link: Some(SiteLink { near_to_far, far_to_near, seed: 1 }),
            host,
            memory: (self == Self::Cramped).then_some(CRAMPED),
            session: SiteSession {
                connections: CONNECTIONS,
                congestion: congestion.to_owned(),
                socket_buffer: Some(BUFFER.into()),
                ..SiteSession::default()
            },
            ..LabSite::default()
        }
    }
}

/// Memory limit in bytes for ten processes of PostMark and their page cache. Their files take 50 MB or more, so only a
/// part of them is cached.
const CRAMPED: u64 = 16 << 20;
/// The number of connections of the paper's sessions.
const CONNECTIONS: u8 = 4;
/// Bytes of each socket buffer in the paper.
const BUFFER: u32 = 512 << 10;

/// Returns a workload of SCSI commands. They have the length of the commands in which the paper's
/// kernel wrote a file.
fn commands(congestion: &str, read: bool, seconds: f64) -> CommandsWorkload {
    CommandsWorkload {
        read,
        connections: CONNECTIONS.into(),
        congestion: congestion.parse().expect("each of the words above is one"),
        socket_buffer: Some(BUFFER),
        warm: 3.0,
        seconds,
        // The range is four times as large as the data in flight. A larger one would take too long to fill before the
        // reads.
        span: 16 << 20,
        check: 8,
        ..CommandsWorkload::default()
    }
}

/// Returns the word in the names of measured points for calls of this size in KiB; `what` is
/// "writes" or "reads".
pub(super) fn file_calls(what: &str, size_kib: u32) -> String {
    format!("file-{what}-{size_kib}k")
}

/// Returns a workload that reads a file, or writes and syncs it, through the page cache, with calls
/// of this size in KiB (sections 4.1 and 4.2). The paper's file has a gigabyte.
fn calls(scale: ExperimentScale, reads: u8, size_kib: u32) -> WorkloadTask {
    WorkloadTask::Fio(Fio {
        shape: FioShape::Vxbench,
        block_kib: Some(size_kib),
        size_mib: scale.pick(8, 16),
        reads: Some(reads),
        sequential: true,
        // A time limit that is never reached: the run ends at the end of the file.
        seconds: 300,
        ..Fio::default()
    })
}

/// Returns PostMark with a part of the files and transactions of the paper's Table 6: its 20,000
/// files and 50,000 transactions would take most of a day over such a link.
fn postmark(scale: ExperimentScale, processes: u32) -> WorkloadTask {
    // The files take more than three times the memory of the host. Writing them takes half a minute
    // at 4 ms.
    let (files, transactions) = scale.pick((1000, 300), (2000, 1000));
    WorkloadTask::Postmark(Postmark {
        files: files / processes,
        transactions: transactions / processes,
        least: 500,
        most: 100_000,
        block: 4096,
        processes,
    })
}

/// Returns Bonnie++ with the part of the paper's gigabyte that it can write, rewrite and read in
/// two minutes at 4 ms.
fn bonnie(processes: u32) -> WorkloadTask {
    let file_mib = 64 / processes;
    WorkloadTask::Bonnie(Bonnie {
        file_mib,
        seeks: 400 / processes,
        processes,
        ..Bonnie::default()
    })
}

fn files(use_: FairTcpTraffic, task: WorkloadTask, seconds: f64) -> FairTcpSweep {
    FairTcpSweep { use_, task: Box::new(move |_| task.clone()), runs: 1, seconds, windows: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every site must name its congestion control. With the kernel's default, which may be any
    /// algorithm, a point would be measured under a wrong name.
    #[test]
    fn every_point_names_its_congestion_control() {
        for point in points(ExperimentScale::Full) {
            assert_ne!(point.site.session.congestion, "kernel default", "{}", point.name);
            if let WorkloadTask::Commands(commands) = &point.task {
                assert_eq!(commands.congestion.to_string(), point.site.session.congestion);
            }
        }
    }
}
