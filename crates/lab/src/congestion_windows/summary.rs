//! Summarizes sampled windows in figures and in series for plots. Uses only samples with data in flight, and only from
//! one second after the first data on.

use std::time::Duration;

use workload::{WorkloadFigure, WorkloadSeries};

use super::sock_diag::TcpInfo;

/// The summary of the congestion windows of some connections.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Windows {
    /// Figures of all connections together, such as the mean of the sum of their congestion windows.
    pub figures: Vec<WorkloadFigure>,
    /// Series for plots: the windows of the first two connections for 1.2 s, and for 50 s the
    /// difference of these two and the sum of all windows (the paper's Figures 3 and 2).
    pub series: Vec<WorkloadSeries>,
    /// Number of queries that the kernel did not answer, so that samples are missing.
    pub missed: u64,
}

/// Samples in this time after the first data are ignored, since the congestion windows still grow.
const SETTLED: Duration = Duration::from_secs(1);
/// Maximum number of points in the series of sums and of differences: 50 s.
const LONG: usize = 5000;
/// Maximum number of points in the plot of each of the two windows: one every 10 ms for 1.2 s.
const SHORT: usize = 120;

/// Collects samples of the congestion windows of all connections, and computes their statistics.
#[derive(Default)]
pub(super) struct Looks {
    /// The time of the first sample with data in flight.
    begun: Option<Duration>,
    sum: Moments,
    difference: Moments,
    /// Mean and standard deviation of the congestion window of each connection, in the order of the first samples.
    each: Vec<Moments>,
    round_trip_ms: Moments,
    delivery: Moments,
    sums: Vec<[f64; 2]>,
    differences: Vec<[f64; 2]>,
    pair: [Vec<[f64; 2]>; 2],
}

impl Looks {
    /// Adds a sample: the TCP state of each connection at the time `at`.
    pub fn add(&mut self, at: Duration, sockets: &[TcpInfo]) {
        if sockets.iter().all(|it| it.unacked == 0) {
            return;
        }
        let begun = *self.begun.get_or_insert(at);
        let Some(at) = at.checked_sub(begun + SETTLED) else { return };
        let at = at.as_secs_f64();
        let windows: Vec<f64> = sockets.iter().map(|it| it.cwnd.into()).collect();
        let sum = windows.iter().sum();
        self.sum.add(sum);
        keep(&mut self.sums, LONG, [at, sum]);
        self.each.resize_with(self.each.len().max(windows.len()), Moments::default);
        self.each.iter_mut().zip(&windows).for_each(|(each, window)| each.add(*window));
        if let [one, other, ..] = windows[..] {
            self.difference.add(one - other);
            keep(&mut self.differences, LONG, [at, one - other]);
            keep(&mut self.pair[0], SHORT, [at, one]);
            keep(&mut self.pair[1], SHORT, [at, other]);
        }
        sockets.iter().for_each(|it| self.round_trip_ms.add(f64::from(it.srtt_us) / 1e3));
        let rate: u64 = sockets.iter().map(|it| it.delivery_rate).sum();
        self.delivery.add(rate as f64 * 8.0 / 1e6);
    }

    /// Returns the summary of all samples. `counted` has the sums of the TCP counters of all connections; each
    /// connection is counted from its first sample on.
    pub fn windows(self, counted: TcpSegmentCounters) -> Windows {
        let mut figures = vec![];
        let mut figure = |name: &str, unit: &str, value: f64| {
            figures.push(WorkloadFigure { name: name.to_owned(), unit: unit.to_owned(), value });
        };
        let connections = self.each.len() as f64;
        figure("looks at windows", "", self.sum.count as f64);
        figure("connections", "", connections);
        if self.sum.count > 0 {
            figure("window mean", "segments", self.sum.mean);
            figure("window deviation", "segments", self.sum.deviation());
            figure("window spread", "%", 100.0 * self.sum.deviation() / self.sum.mean.max(1.0));
            let mean =
                |of: fn(&Moments) -> f64| self.each.iter().map(of).sum::<f64>() / connections;
            figure("window of one mean", "segments", mean(|it| it.mean));
            figure("window of one deviation", "segments", mean(Moments::deviation));
            figure("round trip mean", "ms", self.round_trip_ms.mean);
            figure("delivery rate mean", "Mbit/s", self.delivery.mean);
        }
        if self.difference.count > 0 {
            figure("difference mean", "segments", self.difference.mean);
            figure("difference deviation", "segments", self.difference.deviation());
        }
        figure("segments sent", "", counted.segments as f64);
        figure("retransmits", "", counted.retransmits as f64);
        let share = counted.retransmits as f64 / counted.segments.max(1) as f64;
        figure("retransmitted", "%", 100.0 * share);
        figure("false retransmits", "", counted.duplicates as f64);
        if let Some(timeouts) = counted.timeouts {
            figure("timeouts", "", timeouts as f64);
        }
        let series = |name: &str, points: Vec<[f64; 2]>| WorkloadSeries {
            name: name.to_owned(),
            x: "time, s".to_owned(),
            y: "window, segments".to_owned(),
            points,
        };
        let [one, other] = self.pair;
        let series = [
            series("window of connection 1", one),
            series("window of connection 2", other),
            series("difference of windows", self.differences),
            series("window of all", self.sums),
        ];
        let series = series.into_iter().filter(|it| !it.points.is_empty()).collect();
        Windows { figures, series, missed: 0 }
    }
}

fn keep(points: &mut Vec<[f64; 2]>, most: usize, point: [f64; 2]) {
    if points.len() < most {
        points.push(point);
    }
}

/// How much the sockets' segment counters have grown during the sampling.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct TcpSegmentCounters {
    pub segments: u64,
    pub retransmits: u64,
    pub duplicates: u64,
    pub timeouts: Option<u64>,
}

impl TcpSegmentCounters {
    /// Adds the difference between the first and the last sample of a socket.
    pub fn add(&mut self, first: &TcpInfo, last: &TcpInfo) {
        let of = |last: u32, first: u32| u64::from(last.wrapping_sub(first));
        self.segments += of(last.segments, first.segments);
        self.retransmits += of(last.retransmits, first.retransmits);
        self.duplicates += of(last.duplicates, first.duplicates);
        if let (Some(last), Some(first)) = (last.timeouts, first.timeouts) {
            *self.timeouts.get_or_insert(0) += u64::from(last.wrapping_sub(first));
        }
    }
}

/// Mean and standard deviation of numbers, computed incrementally (Welford 1962).
#[derive(Clone, Copy, Debug, Default)]
struct Moments {
    count: u64,
    mean: f64,
    /// The sum of the squared differences from the mean.
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1;
        let off = value - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (value - self.mean);
    }

    fn deviation(&self) -> f64 {
        (self.squares / self.count.max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(cwnd: u32, unacked: u32) -> TcpInfo {
        TcpInfo { cwnd, unacked, srtt_us: 4000, delivery_rate: 125_000, ..TcpInfo::default() }
    }

    #[test]
    fn windows_come_to_mean_deviation_and_difference() {
        let mut looks = Looks::default();
        let at = Duration::from_millis;
        // The summary ignores these samples: the first comes before any data, the others in the first second after the
        // first data.
        looks.add(at(0), &[socket(100, 0), socket(100, 0)]);
        looks.add(at(5000), &[socket(100, 1), socket(100, 0)]);
        looks.add(at(5990), &[socket(100, 1), socket(100, 0)]);
        looks.add(at(6000), &[socket(6, 1), socket(2, 0)]);
        // No connection has data in flight, so this sample must not count either.
        looks.add(at(6010), &[socket(50, 0), socket(50, 0)]);
        looks.add(at(6020), &[socket(4, 1), socket(8, 1)]);
        let mut counted = TcpSegmentCounters::default();
        let last = TcpInfo { segments: 200, retransmits: 5, timeouts: Some(1), ..socket(1, 0) };
        counted.add(&TcpInfo { timeouts: Some(0), ..socket(1, 0) }, &last);
        let windows = looks.windows(counted);
        let get = |name: &str| windows.figures.iter().find(|it| it.name == name).unwrap().value;
        assert_eq!((get("looks at windows"), get("connections")), (2.0, 2.0));
        assert_eq!((get("window mean"), get("window deviation")), (10.0, 2.0));
        assert_eq!((get("window spread"), get("window of one mean")), (20.0, 5.0));
        assert_eq!((get("difference mean"), get("difference deviation")), (0.0, 4.0));
        assert_eq!((get("round trip mean"), get("delivery rate mean")), (4.0, 2.0));
        assert_eq!((get("retransmits"), get("retransmitted"), get("timeouts")), (5.0, 2.5, 1.0));
        assert_eq!(windows.series[2].points, [[0.0, 4.0], [0.02, -4.0]]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut looks = Looks::default();
        for ms in 0..20_000 {
            looks.add(Duration::from_millis(10 * ms), &[socket(3, 1), socket(4, 1)]);
        }
        let windows = looks.windows(TcpSegmentCounters::default());
        assert!(windows.series.iter().all(|it| it.points.len() <= LONG), "{:?}", windows.figures);
    }
}
