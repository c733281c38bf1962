//! The performance bars. A bar is a requirement: the median of one figure of a run must be at least, or at most, a
//! limit.

use crate::figures::{BenchFigures, PointMetric, Samples, larger, ratio, sum};
use crate::load::BenchPoint;
use crate::plan::{loads, servers};

/// The limit of a performance bar: a bound on the median of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    Least(f64),
    Most(f64),
}

impl Limit {
    /// Returns true if the median of a figure keeps this limit.
    pub fn holds(self, median: f64) -> bool {
        match self {
            Limit::Least(limit) => median >= limit,
            Limit::Most(limit) => median <= limit,
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Limit::Least(limit) => write!(f, "≥ {limit}"),
            Limit::Most(limit) => write!(f, "≤ {limit}"),
        }
    }
}

/// A figure of a benchmark, and the limit that it should keep.
pub struct PerformanceBar {
    /// Describes the figure in the report.
    pub name: &'static str,
    pub limit: Limit,
    /// Computes the figure; `None` if a value that the figure needs was not measured.
    pub figure: fn(&BenchFigures) -> Option<Samples>,
}

const RATE: PointMetric = BenchPoint::per_second;
const CPU: PointMetric = BenchPoint::cpu_us;
const MEDIAN: PointMetric = BenchPoint::median_us;
const MEAN: PointMetric = BenchPoint::mean_us;
const P9999: PointMetric = |point| point.quantile_us(0.9999);

/// Divides a metric that was measured on `server` by the same metric on `other`, both under the load `load`.
fn over(
    figures: &BenchFigures,
    load: &str,
    part: PointMetric,
    server: &str,
    other: &str,
) -> Option<Samples> {
    ratio(figures.of(load, server, part), figures.of(load, other, part))
}

const fn least(
    name: &'static str,
    limit: f64,
    figure: fn(&BenchFigures) -> Option<Samples>,
) -> PerformanceBar {
    PerformanceBar { name, limit: Limit::Least(limit), figure }
}

const fn most(
    name: &'static str,
    limit: f64,
    figure: fn(&BenchFigures) -> Option<Samples>,
) -> PerformanceBar {
    PerformanceBar { name, limit: Limit::Most(limit), figure }
}

use loads::{
    APPEND, DIGESTS, DURABLE_1, DURABLE_32, EMC_TEL, HIT, MANY, READ_1, READ_32, READ_LEVEL_2,
    READ_STREAM, STREAM_OF_FOUR, STREAM_OF_ONE, WRITE_1, WRITE_32, WRITE_LEVEL_2, WRITE_NOISE,
    WRITE_STREAM, WRITE_WORDS,
};
use servers::{
    DISK, EMC_COMPLETE, EMC_DISK, EMC_FAR, EMC_FAR_4, EMC_IMMEDIATE, EMC_IMMEDIATE_4, FAR, FOREBAY,
    GATEWAY, GATEWAY_DESTAGING, GATEWAY_SEALED, LINE, LINE_LZ4, LINE_ZSTD, POLLING, RAW,
    RAW_MEMORY, RAW_TOGETHER, REMOTE, REMOTE_LZ4, REMOTE_ZSTD, TGT, TLS,
};

/// All performance bars, in the order of the data path.
#[rustfmt::skip]
pub const BARS: &[PerformanceBar] = &[
    least("4 KiB reads, depth 32: operations/s over bare TCP", 0.7, |f| over(f, READ_32, RATE, FOREBAY, RAW)),
    least("4 KiB writes, depth 32: operations/s over bare TCP", 0.6, |f| over(f, WRITE_32, RATE, FOREBAY, RAW)),
    most("4 KiB reads, depth 32: server CPU over bare TCP", 1.43, |f| over(f, READ_32, CPU, FOREBAY, RAW)),
    most("4 KiB writes, depth 32: server CPU over bare TCP into 256 MiB", 1.2, |f| over(f, WRITE_32, CPU, FOREBAY, RAW_MEMORY)),
    least("4 KiB reads, depth 32: operations/s over tgt", 8.0, |f| over(f, READ_32, RATE, FOREBAY, TGT)),
    least("4 KiB writes, depth 32: operations/s over tgt", 7.0, |f| over(f, WRITE_32, RATE, FOREBAY, TGT)),
    most("4 KiB reads, depth 32: context switches per operation", 0.1, |f| f.of(READ_32, FOREBAY, BenchPoint::switches)),
    most("4 KiB writes, depth 32: context switches per operation", 0.1, |f| f.of(WRITE_32, FOREBAY, BenchPoint::switches)),
    least("128 KiB reads, depth 8: operations/s over tgt", 2.0, |f| over(f, READ_STREAM, RATE, FOREBAY, TGT)),
    least("128 KiB writes, depth 8: operations/s over tgt", 2.0, |f| over(f, WRITE_STREAM, RATE, FOREBAY, TGT)),
    most("4 KiB reads, depth 1: median over bare TCP", 1.15, |f| over(f, READ_1, MEDIAN, FOREBAY, RAW)),
    most("4 KiB writes, depth 1: median over bare TCP", 1.15, |f| over(f, WRITE_1, MEDIAN, FOREBAY, RAW)),
    most("polling, 4 KiB reads, depth 1: median over bare TCP", 0.45, |f| over(f, READ_1, MEDIAN, POLLING, RAW)),
    most("polling, 4 KiB writes, depth 1: median over bare TCP", 0.45, |f| over(f, WRITE_1, MEDIAN, POLLING, RAW)),
    least("polling, 4 KiB reads, depth 32: operations/s over not polling", 1.0, |f| over(f, READ_32, RATE, POLLING, FOREBAY)),
    least("polling, 4 KiB writes, depth 32: operations/s over not polling", 1.0, |f| over(f, WRITE_32, RATE, POLLING, FOREBAY)),
    most("polling, idle session: share of a CPU", 0.01, |f| f.single(servers::IDLE)),
    most("CRC32C digests, 4 KiB reads, depth 32: server CPU over none", 1.15,
        |f| ratio(f.of(DIGESTS, FOREBAY, CPU), f.of(READ_32, FOREBAY, CPU))),
    most("TLS, 128 KiB reads, depth 8: server CPU over none", 2.5, |f| over(f, READ_STREAM, CPU, TLS, FOREBAY)),
    most("TLS, 128 KiB writes, depth 8: server CPU over none", 2.5, |f| over(f, WRITE_STREAM, CPU, TLS, FOREBAY)),
    most("level 2 unused, 4 KiB reads, depth 32: server CPU over level 0", 1.05,
        |f| ratio(f.of(READ_LEVEL_2, FOREBAY, CPU), f.of(READ_32, FOREBAY, CPU))),
    most("level 2 unused, 4 KiB writes, depth 32: server CPU over level 0", 1.05,
        |f| ratio(f.of(WRITE_LEVEL_2, FOREBAY, CPU), f.of(WRITE_32, FOREBAY, CPU))),
    least("64 sessions at depth 4, 4 KiB reads: operations/s over bare TCP with 64 connections", 0.7,
        |f| over(f, MANY, RATE, FOREBAY, RAW_TOGETHER)),
    least("4 connections, 128 KiB reads: operations/s over 1.3 times one connection's, or the share of its CPU that the server uses", 0.95,
        |f| larger(
            ratio(f.of(STREAM_OF_FOUR, FOREBAY, RATE), f.of(STREAM_OF_ONE, FOREBAY, |point| 1.3 * point.per_second())),
            f.of(STREAM_OF_FOUR, FOREBAY, BenchPoint::cpu_share),
        )),
    most("gateway, durable 4 KiB writes, depth 1: median over append + TCP round trip", 1.4,
        |f| ratio(f.of(DURABLE_1, GATEWAY, MEDIAN), sum(f.of(APPEND, DISK, MEDIAN), f.of(WRITE_1, RAW, MEDIAN)))),
    least("gateway, durable 4 KiB writes, depth 32: operations/s over single appends", 6.0,
        |f| ratio(f.of(DURABLE_32, GATEWAY, RATE), f.of(APPEND, DISK, RATE))),
    least("gateway, durable 4 KiB writes, depth 1: operations/s over the far volume", 40.0,
        |f| over(f, DURABLE_1, RATE, GATEWAY, FAR)),
    most("gateway, 4 KiB reads that hit DRAM, depth 32: CPU over the target from memory", 1.3,
        |f| over(f, HIT, CPU, GATEWAY, FOREBAY)),
    most("gateway, durable 4 KiB writes, depth 1, while it destages: p99.9 over the same without", 3.0,
        |f| over(f, DURABLE_1, |point| point.quantile_us(0.999), GATEWAY_DESTAGING, GATEWAY)),
    most("gateway, durable 4 KiB writes, depth 1, while it destages: longest, ms", 100.0,
        |f| f.of(DURABLE_1, GATEWAY_DESTAGING, |point| point.longest_us() / 1e3)),
    most("lz4, 64 KiB writes of words: CPU of both ends over none", 4.0, |f| over(f, WRITE_WORDS, CPU, REMOTE_LZ4, REMOTE)),
    most("zstd, 64 KiB writes of words: CPU of both ends over none", 7.0, |f| over(f, WRITE_WORDS, CPU, REMOTE_ZSTD, REMOTE)),
    most("lz4, 64 KiB writes of noise: CPU of both ends over none", 1.4, |f| over(f, WRITE_NOISE, CPU, REMOTE_LZ4, REMOTE)),
    most("zstd, 64 KiB writes of noise: CPU of both ends over none", 1.4, |f| over(f, WRITE_NOISE, CPU, REMOTE_ZSTD, REMOTE)),
    least("lz4, 64 KiB writes of words over 1 Gbit/s: operations/s over none", 1.3, |f| over(f, WRITE_WORDS, RATE, LINE_LZ4, LINE)),
    least("zstd, 64 KiB writes of words over 1 Gbit/s: operations/s over none", 0.9, |f| over(f, WRITE_WORDS, RATE, LINE_ZSTD, LINE)),
    most("log encrypted, durable 4 KiB writes, depth 1: median over in clear", 1.2, |f| over(f, DURABLE_1, MEDIAN, GATEWAY_SEALED, GATEWAY)),
    most("log encrypted, durable 4 KiB writes, depth 1: CPU over in clear", 1.5, |f| over(f, DURABLE_1, CPU, GATEWAY_SEALED, GATEWAY)),
    most("log encrypted, durable 4 KiB writes, depth 32: CPU over in clear", 1.5, |f| over(f, DURABLE_32, CPU, GATEWAY_SEALED, GATEWAY)),
    least("EMC-tel-like trace, 0 ms: mean of the far volume over immediate report", 6.2, |f| over(f, EMC_TEL, MEAN, EMC_FAR, EMC_IMMEDIATE)),
    least("EMC-tel-like trace, 0 ms: mean of the far volume over report after complete", 2.9, |f| over(f, EMC_TEL, MEAN, EMC_FAR, EMC_COMPLETE)),
    least("EMC-tel-like trace, 4 ms: mean of the far volume over immediate report", 50.0, |f| over(f, EMC_TEL, MEAN, EMC_FAR_4, EMC_IMMEDIATE_4)),
    most("EMC-tel-like trace, 0 ms, immediate report: p99.99 over the log disk's file", 3.0, |f| over(f, EMC_TEL, P9999, EMC_IMMEDIATE, EMC_DISK)),
    most("EMC-tel-like trace, 0 ms, report after complete: p99.99 over the log disk's file", 3.0, |f| over(f, EMC_TEL, P9999, EMC_COMPLETE, EMC_DISK)),
    most("64 sessions of 32 writes of 4 KiB on a target: MiB beyond its settings", 64.0, |f| f.single(servers::TARGET_MEMORY[0])),
    most("64 sessions of 32 writes of 128 KiB on a target: MiB beyond its settings", 64.0, |f| f.single(servers::TARGET_MEMORY[1])),
    most("64 sessions of 32 writes of 4 KiB on a gateway: MiB beyond its settings", 64.0, |f| f.single(servers::GATEWAY_MEMORY[0])),
    most("64 sessions of 32 writes of 128 KiB on a gateway: MiB beyond its settings", 64.0, |f| f.single(servers::GATEWAY_MEMORY[1])),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_on_its_side() {
        assert!(Limit::Least(2.0).holds(2.0) && !Limit::Least(2.0).holds(1.9));
        assert!(Limit::Most(2.0).holds(2.0) && !Limit::Most(2.0).holds(2.1));
    }

    #[test]
    fn a_bar_without_its_figures_is_not_judged() {
        assert!(BARS.iter().all(|bar| (bar.figure)(&BenchFigures::default()).is_none()));
    }
}
