//! Replays a trace like EMC-tel at its original times on a device or an iSCSI unit (STICS, sections
//! 5.2 and 5.3.4).

mod events;
mod queue;
mod replay;

use std::path::Path;
use std::sync::Arc;

use initiator::RemoteVolume;
use serde::{Deserialize, Serialize};
use volume::{FileVolume, FileVolumeOptions, Stack};

use crate::{
    Error, Tool, Workload, WorkloadLocation, WorkloadResult, WorkloadRun, WorkloadSeries,
    location::open_device, remote_unit,
};
use replay::{TraceReplay, TraceReplayResult};

pub use events::{TraceEvent, TraceEvents};
pub use queue::TraceQueue;

/// Number of requests of the whole trace, the default of the option.
const REQUESTS: u64 = TraceEvents::REQUESTS;

/// Settings of the workload that replays a trace.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize, clap::Args)]
#[serde(default, deny_unknown_fields)]
pub struct TraceWorkload {
    /// Number of requests to replay, from the beginning of the trace, 1 to 230370
    #[arg(long, default_value_t = REQUESTS)]
    pub requests: u64,
    /// Speed of the replay: seconds of the trace per second, 0.01 to 100
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Make each write stable before it is acknowledged (FUA)
    #[arg(long)]
    pub durable: bool,
    /// Number of written blocks to read back and compare at the end, distributed over all of them
    #[arg(long, default_value_t = 1000)]
    pub check: u64,
}

impl Default for TraceWorkload {
    fn default() -> Self {
        Self { requests: REQUESTS, speed: 1.0, durable: false, check: 1000 }
    }
}

impl Workload for TraceWorkload {
    fn needs(&self) -> Vec<Tool> {
        Vec::new()
    }

    fn check(&self) -> Result<(), Error> {
        if !(1..=REQUESTS).contains(&self.requests) {
            return Err(Error::Settings(format!("the trace has 1 to {REQUESTS} requests")));
        }
        if !(0.01..=100.0).contains(&self.speed) {
            return Err(Error::Settings("the speed of the trace is 0.01 to 100".to_owned()));
        }
        Ok(())
    }

    fn space(&self) -> u64 {
        TraceEvents::SET_BLOCKS * u64::from(TraceEvents::BLOCK_BYTES)
    }

    fn run(&self, run: &WorkloadRun<'_>) -> Result<WorkloadResult, Error> {
        self.check()?;
        // Run both the replay and the session on one thread.
        remote_unit::runtime()?.block_on(async {
            let opened = OpenedTraceVolume::open(run.place).await?;
            let answered = self.replay(&opened.stack, run).await;
            opened.close().await;
            Ok(self.outcome(answered?))
        })
    }
}

impl TraceWorkload {
    async fn replay(
        &self,
        stack: &Stack,
        run: &WorkloadRun<'_>,
    ) -> Result<TraceReplayResult, Error> {
        let free = stack.geometry().bytes();
        let needed = self.space();
        if free < needed {
            return Err(Error::Space { needed, free });
        }
        let mut replay = TraceReplay::new(&**stack, run.seed, self.durable);
        replay.put(TraceEvents::new(run.seed, self.requests), self.speed, run.progress).await?;
        replay.read_back(self.check).await?;
        Ok(replay.answered())
    }

    fn outcome(&self, answered: TraceReplayResult) -> WorkloadResult {
        let TraceReplayResult { requests, held, compared } = answered;
        let of = |write: Option<bool>| {
            let wanted = requests.iter().filter(|it| write.is_none_or(|write| it.write == write));
            let mut times: Vec<f64> = wanted.map(|it| it.response.as_secs_f64() * 1e3).collect();
            times.sort_by(f64::total_cmp);
            times
        };
        let (all, reads, writes) = (of(None), of(Some(false)), of(Some(true)));
        let end = requests.iter().map(|it| it.due + it.response).max().unwrap_or_default();
        // Round times in seconds to microseconds, because no clock here is more precise.
        let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
        let points = requests
            .iter()
            .map(|it| [rounded(it.due.as_secs_f64()), rounded(it.response.as_secs_f64()) * 1e3]);
        let series = WorkloadSeries {
            name: "responses".to_owned(),
            x: "time, s".to_owned(),
            y: "response, ms".to_owned(),
            points: points.collect(),
        };
        WorkloadResult {
            verified: format!(
                "{compared} reads of blocks that were written before, those after the run included"
            ),
            series: vec![series],
            ..WorkloadResult::default()
        }
        .figure("response", "ms", mean(&all))
        .figure("median response", "ms", quantile(&all, 0.5))
        .figure("99 % respond within", "ms", quantile(&all, 0.99))
        .figure("longest response", "ms", quantile(&all, 1.0))
        .figure("response of reads", "ms", mean(&reads))
        .figure("response of writes", "ms", mean(&writes))
        .figure("requests", "1/s", all.len() as f64 / end.as_secs_f64())
        .figure("requests that waited for one of their block", "", held as f64)
    }
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

/// Returns the quantile `part` (0 to 1) of sorted times; 0 if there are none.
fn quantile(times: &[f64], part: f64) -> f64 {
    let last = times.len().saturating_sub(1);
    times.get((last as f64 * part).round() as usize).copied().unwrap_or(0.0)
}

/// The volume on which a trace is replayed: a device, or a unit with its session.
struct OpenedTraceVolume {
    stack: Stack,
    /// The session with the unit, to be closed after the replay; `None` for a device.
    remote: Option<Arc<RemoteVolume>>,
}

impl OpenedTraceVolume {
    async fn open(place: &WorkloadLocation) -> Result<Self, Error> {
        match place {
            WorkloadLocation::Device(path) => Ok(Self { stack: device(path)?, remote: None }),
            WorkloadLocation::Url(url) => {
                let remote = Arc::new(remote_unit::log_in(remote_unit::settings(url)?).await?);
                Ok(Self { stack: remote.clone(), remote: Some(remote) })
            }
            WorkloadLocation::Folder(_) => {
                let (workload, wanted) = ("the trace", "a block device or an iSCSI unit");
                Err(Error::Place { workload, wanted, place: place.to_string() })
            }
        }
    }

    async fn close(self) {
        if let Some(remote) = self.remote {
            remote.close().await;
        }
    }
}

/// Opens a block device that bypasses the page cache. Fails if another program uses the device.
fn device(path: &Path) -> Result<Stack, Error> {
    drop(open_device(path, rustix::fs::OFlags::empty())?);
    let options = FileVolumeOptions { direct: true, ..FileVolumeOptions::new(path) };
    match FileVolume::open(&options) {
        Ok(volume) if !volume.is_direct() => Err(Error::Settings(format!(
            "{} does not support direct I/O in blocks of 512 bytes",
            path.display()
        ))),
        Ok(volume) => Ok(Arc::new(volume)),
        Err(error) => {
            Err(Error::Session { act: "open the device".to_owned(), reason: error.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use volume::{FaultCallKind, FaultRule, FaultVolume, Geometry, MemVolume, Symptom};

    use super::*;

    fn memory() -> Stack {
        Arc::new(MemVolume::new(Geometry::with_blocks(900_000_000 / 512)))
    }

    fn replay(stack: &Stack, trace: &TraceWorkload) -> Result<TraceReplayResult, Error> {
        let (place, scratch) = (WorkloadLocation::Url(String::new()), std::path::Path::new("/"));
        let run = WorkloadRun { place: &place, scratch, seed: 3, progress: &|_| () };
        remote_unit::runtime().unwrap().block_on(trace.replay(stack, &run))
    }

    #[test]
    fn a_trace_is_replayed_at_its_times_and_compared() {
        let trace = TraceWorkload { requests: 2000, speed: 10.0, ..TraceWorkload::default() };
        let answered = replay(&memory(), &trace).unwrap();
        assert_eq!(answered.requests.len(), 2000);
        assert!(answered.compared > 500, "{}", answered.compared);
        assert!(answered.requests.iter().all(|it| it.response < Duration::from_secs(5)));
        let outcome = trace.outcome(answered);
        // The trace has 333 requests per second on average, and this test replays it ten times as
        // fast.
        let rate = outcome.get("requests").unwrap();
        assert!((2000.0..4500.0).contains(&rate), "{rate}");
        assert!(outcome.get("response").unwrap() > 0.0, "{outcome:?}");
        assert_eq!(outcome.series[0].points.len(), 2000);
        assert!(outcome.series[0].points.is_sorted_by_key(|point| point[0]));
    }

    #[test]
    fn a_disk_that_returns_wrong_data_is_detected() {
        let disk = FaultVolume::new(memory());
        disk.faults()
            .add(FaultRule::always(FaultCallKind::Write, Symptom::Lies).after(300).times(40));
        let trace = TraceWorkload { requests: 1000, speed: 20.0, ..TraceWorkload::default() };
        let error = replay(&(Arc::new(disk) as Stack), &trace).unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
    }

    #[test]
    fn a_volume_that_is_too_small_or_an_invalid_trace_is_refused_before_the_start() {
        let small: Stack = Arc::new(MemVolume::new(Geometry::with_blocks(1000)));
        assert!(matches!(replay(&small, &TraceWorkload::default()), Err(Error::Space { .. })));
        let trace = TraceWorkload { requests: 0, ..TraceWorkload::default() };
        assert!(matches!(trace.check(), Err(Error::Settings(_))));
        let trace = TraceWorkload { speed: f64::NAN, ..TraceWorkload::default() };
        assert!(matches!(trace.check(), Err(Error::Settings(_))));
    }
}
