//! The plan of a run: groups of loads, and for each load the servers on which it runs.

use crate::load::{BenchLoad, BenchPayload};

/// The names of the loads in tables and results.
pub mod loads {
    pub const READ_32: &str = "4 KiB random reads, depth 32";
    pub const WRITE_32: &str = "4 KiB random writes, depth 32";
    pub const READ_1: &str = "4 KiB random reads, depth 1";
    pub const WRITE_1: &str = "4 KiB random writes, depth 1";
    pub const READ_STREAM: &str = "128 KiB reads in order, depth 8";
    pub const WRITE_STREAM: &str = "128 KiB writes in order, depth 8";
    pub const DIGESTS: &str = "4 KiB random reads, depth 32, CRC32C";
    /// The session has error recovery level 2; no errors occur.
    pub const READ_LEVEL_2: &str = "4 KiB random reads, depth 32, level 2";
    /// The session has error recovery level 2; no errors occur.
    pub const WRITE_LEVEL_2: &str = "4 KiB random writes, depth 32, level 2";
    pub const FEW: &str = "4 KiB random reads, 4 sessions at depth 64";
    pub const MANY: &str = "4 KiB random reads, 64 sessions at depth 4";
    pub const STREAM_OF_ONE: &str = "128 KiB reads in order, depth 32";
    pub const STREAM_OF_FOUR: &str = "128 KiB reads in order, 4 connections at depth 8";
    pub const DURABLE_1: &str = "4 KiB durable writes, depth 1";
    pub const DURABLE_32: &str = "4 KiB durable writes, depth 32";
    /// Reads of a region that fits in the cache, so that each read is a cache hit.
    pub const HIT: &str = "4 KiB random reads of 64 MiB, depth 32";
    /// Durable appends, one after the other, to a file whose blocks are allocated.
    pub const APPEND: &str = "4 KiB durable appends to a file";
    /// Writes of data that can be compressed.
    pub const WRITE_WORDS: &str = "64 KiB writes of words, depth 8";
    /// Writes of data that cannot be compressed.
    pub const WRITE_NOISE: &str = "64 KiB writes of noise, depth 8";
    /// A trace like EMC-tel of the STICS paper; its details are our own, since the paper describes only some properties
    /// of the trace.
    pub const EMC_TEL: &str = "EMC-tel-like trace";
}

/// The names of servers in tables and results, and of figures that belong to no load.
pub mod servers {
    /// A bare TCP server without iSCSI, with one thread for each connection.
    pub const RAW: &str = "bare TCP";
    /// The bare TCP program with 256 MiB of memory, as much as a target's volume has. It answers
    /// reads from that memory, and copies the payload of writes to it.
    pub const RAW_MEMORY: &str = "bare TCP, 256 MiB";
    pub const RAW_TOGETHER: &str = "bare TCP, one thread";
    /// The bare TCP program with one thread and 256 MiB of memory, divided equally among the
    /// connections.
    pub const RAW_TOGETHER_MEMORY: &str = "bare TCP, one thread, 256 MiB";
    /// The target tgt of Debian, measured in the same run.
    pub const TGT: &str = "tgt";
    /// A target with a volume in memory.
    pub const FOREBAY: &str = "forebay";
    /// A target with TLS. The client connects through `forebay tunnel`, which runs on the CPU of
    /// the load generator.
    pub const TLS: &str = "forebay, TLS";
    /// A target that polls its sockets instead of sleeping (busy polling).
    pub const POLLING: &str = "forebay, polling";
    /// A gateway whose node is behind a link of 4 ms.
    pub const GATEWAY: &str = "forebay gateway";
    pub const GATEWAY_DESTAGING: &str = "forebay gateway, destaging";
    pub const GATEWAY_SEALED: &str = "forebay gateway, log encrypted";
    /// A gateway without a cache, connected to its target over loopback. The reported CPU time is the sum of both
    /// processes.
    pub const REMOTE: &str = "remote layer, loopback";
    /// A gateway without a cache, connected to its node over loopback with LZ4 compression.
    pub const REMOTE_LZ4: &str = "remote layer, loopback, lz4";
    /// A gateway without a cache, connected to its node over loopback with Zstandard compression.
    pub const REMOTE_ZSTD: &str = "remote layer, loopback, zstd";
    pub const LINE: &str = "remote layer, 1 Gbit/s";
    pub const LINE_LZ4: &str = "remote layer, 1 Gbit/s, lz4";
    pub const LINE_ZSTD: &str = "remote layer, 1 Gbit/s, zstd";
    /// The far volume of the gateway, used directly over the same link, without the gateway.
    pub const FAR: &str = "far volume";
    /// A file in the folder of the gateway's log, to measure the disk alone.
    pub const DISK: &str = "disk";
    /// The far volume with the STICS paper's disk, over a link without delay.
    pub const EMC_FAR: &str = "far volume, 0 ms";
    /// A gateway, over a link without delay to the far volume, that acknowledges writes from NVRAM.
    pub const EMC_IMMEDIATE: &str = "gateway, immediate, 0 ms";
    /// A gateway, over a link without delay to the far volume, that acknowledges writes from its
    /// log.
    pub const EMC_COMPLETE: &str = "gateway, after complete, 0 ms";
    /// The far volume with the STICS paper's disk, over a link of 4 ms one way.
    pub const EMC_FAR_4: &str = "far volume, 4 ms";
    /// A gateway, over a link of 4 ms to the far volume, that acknowledges writes from NVRAM.
    pub const EMC_IMMEDIATE_4: &str = "gateway, immediate, 4 ms";
    /// A gateway, over a link of 4 ms to the far volume, that acknowledges writes from its log.
    pub const EMC_COMPLETE_4: &str = "gateway, after complete, 4 ms";
    /// A file in the folder of the log, accessed without a gateway.
    pub const EMC_DISK: &str = "the log disk's file";
    /// The share of a CPU that a polling server uses while its session is idle.
    pub const IDLE: &str = "idle CPU, polling";
    /// Peak memory of a target in MiB, without the memory that its settings assign to volumes: with small and with
    /// large writes.
    pub const TARGET_MEMORY: [&str; 2] =
        ["memory of a target, 4 KiB", "memory of a target, 128 KiB"];
    /// Peak memory of a gateway in MiB, without the memory that its settings assign to its cache: with small and with
    /// large writes.
    pub const GATEWAY_MEMORY: [&str; 2] =
        ["memory of a gateway, 4 KiB", "memory of a gateway, 128 KiB"];
}

use loads::*;
use servers::*;

/// Bytes of a region that fits in every cache.
pub const HIT_BYTES: u64 = 64 << 20;

/// A load, with the servers on which it is measured.
pub struct BenchSeries {
    pub name: &'static str,
    pub load: BenchLoad,
    /// The servers on which the load runs in each round, in order.
    pub servers: &'static [&'static str],
}

/// Loads that are measured together. The user selects groups by name.
pub struct BenchGroup {
    /// The name of the group on the command line.
    pub name: &'static str,
    pub series: &'static [BenchSeries],
    /// True if the group also measures the memory of processes.
    pub memory: bool,
}

const fn series(
    name: &'static str,
    load: BenchLoad,
    servers: &'static [&'static str],
) -> BenchSeries {
    BenchSeries { name, load, servers }
}

/// The servers that show the cost of compression: on loopback and on a link of 1 Gbit/s, each
/// without compression, with LZ4 and with Zstandard.
const COMPRESSED: &[&str] = &[REMOTE, REMOTE_LZ4, REMOTE_ZSTD, LINE, LINE_LZ4, LINE_ZSTD];

const DURABLE: BenchLoad = BenchLoad { durable: true, ..BenchLoad::write_4k(1) };

/// All groups of measurements, with their names on the command line.
#[rustfmt::skip]
pub const GROUPS: &[BenchGroup] = &[
    BenchGroup { name: "target", memory: false, series: &[
        series(READ_32, BenchLoad::read_4k(32), &[RAW, RAW_MEMORY, TGT, FOREBAY]),
        series(WRITE_32, BenchLoad::write_4k(32), &[RAW, RAW_MEMORY, TGT, FOREBAY]),
    ] },
    BenchGroup { name: "stream", memory: false, series: &[
        series(READ_STREAM, BenchLoad::stream(false, 8), &[RAW, TGT, FOREBAY]),
        series(WRITE_STREAM, BenchLoad::stream(true, 8), &[RAW, TGT, FOREBAY]),
    ] },
    BenchGroup { name: "depth1", memory: false, series: &[
        series(READ_1, BenchLoad::read_4k(1), &[RAW, TGT, FOREBAY]),
        series(WRITE_1, BenchLoad::write_4k(1), &[RAW, TGT, FOREBAY]),
    ] },
    BenchGroup { name: "polling", memory: false, series: &[
        series(READ_1, BenchLoad::read_4k(1), &[RAW, POLLING]),
        series(WRITE_1, BenchLoad::write_4k(1), &[RAW, POLLING]),
        series(READ_32, BenchLoad::read_4k(32), &[FOREBAY, POLLING]),
        series(WRITE_32, BenchLoad::write_4k(32), &[FOREBAY, POLLING]),
    ] },
    BenchGroup { name: "digests", memory: false, series: &[
        series(READ_32, BenchLoad::read_4k(32), &[FOREBAY]),
        series(DIGESTS, BenchLoad { digests: true, ..BenchLoad::read_4k(32) }, &[FOREBAY]),
    ] },
    BenchGroup { name: "tls", memory: false, series: &[
        series(READ_STREAM, BenchLoad::stream(false, 8), &[FOREBAY, TLS]),
        series(WRITE_STREAM, BenchLoad::stream(true, 8), &[FOREBAY, TLS]),
    ] },
    BenchGroup { name: "sessions", memory: false, series: &[
        series(READ_32, BenchLoad::read_4k(32), &[FOREBAY]),
        series(READ_LEVEL_2, BenchLoad { level: 2, ..BenchLoad::read_4k(32) }, &[FOREBAY]),
        series(WRITE_32, BenchLoad::write_4k(32), &[FOREBAY]),
        series(WRITE_LEVEL_2, BenchLoad { level: 2, ..BenchLoad::write_4k(32) }, &[FOREBAY]),
        series(FEW, BenchLoad { sessions: 4, ..BenchLoad::read_4k(64) }, &[RAW_TOGETHER, RAW_TOGETHER_MEMORY, FOREBAY]),
        series(MANY, BenchLoad { sessions: 64, ..BenchLoad::read_4k(4) }, &[RAW_TOGETHER, RAW_TOGETHER_MEMORY, FOREBAY]),
        series(STREAM_OF_ONE, BenchLoad::stream(false, 32), &[FOREBAY]),
        series(STREAM_OF_FOUR, BenchLoad { connections: 4, ..BenchLoad::stream(false, 8) }, &[FOREBAY]),
    ] },
    BenchGroup { name: "gateway", memory: false, series: &[
        series(WRITE_1, BenchLoad::write_4k(1), &[RAW]),
        series(APPEND, DURABLE, &[DISK]),
        series(DURABLE_1, DURABLE, &[GATEWAY, FAR]),
        series(DURABLE_32, BenchLoad { depth: 32, ..DURABLE }, &[GATEWAY]),
        series(HIT, BenchLoad { region: HIT_BYTES, ..BenchLoad::read_4k(32) }, &[FOREBAY, GATEWAY]),
    ] },
    BenchGroup { name: "pauses", memory: false, series: &[
        series(DURABLE_1, DURABLE, &[GATEWAY, GATEWAY_DESTAGING]),
    ] },
    BenchGroup { name: "options", memory: false, series: &[
        series(WRITE_WORDS, BenchLoad::write_64k(BenchPayload::Words), COMPRESSED),
        series(WRITE_NOISE, BenchLoad::write_64k(BenchPayload::Noise), COMPRESSED),
        series(DURABLE_1, DURABLE, &[GATEWAY, GATEWAY_SEALED]),
        series(DURABLE_32, BenchLoad { depth: 32, ..DURABLE }, &[GATEWAY, GATEWAY_SEALED]),
    ] },
    BenchGroup { name: "memory", memory: true, series: &[] },
];

/// Returns the points to measure for these groups: each combination of a load and a server occurs once.
pub fn points(groups: &[&BenchGroup]) -> Vec<(&'static str, BenchLoad, &'static str)> {
    let mut points: Vec<(&str, BenchLoad, &str)> = vec![];
    for series in groups.iter().flat_map(|group| group.series) {
        for server in series.servers {
            if !points.iter().any(|(name, _, on)| (*name, *on) == (series.name, server)) {
                points.push((series.name, series.load, server));
            }
        }
    }
    // Run a load on all of its servers directly one after the other, so that a disturbance of the
    // machine affects all of them alike.
    points.sort_by_key(|(name, _, _)| points_order(groups, name));
    points
}

fn points_order(groups: &[&BenchGroup], name: &str) -> Option<usize> {
    groups.iter().flat_map(|group| group.series).position(|series| series.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_two_groups_want_is_measured_once() {
        let groups: Vec<&BenchGroup> = GROUPS.iter().collect();
        let all = points(&groups);
        let reads: Vec<&str> = all
            .iter()
            .filter(|(name, _, _)| *name == READ_32)
            .map(|(_, _, server)| *server)
            .collect();
        assert_eq!(reads, [RAW, RAW_MEMORY, TGT, FOREBAY, POLLING]);
    }

    #[test]
    fn the_servers_of_a_load_are_measured_one_after_the_other() {
        let groups: Vec<&BenchGroup> = GROUPS.iter().collect();
        let mut names: Vec<&str> = points(&groups).iter().map(|(name, _, _)| *name).collect();
        names.dedup();
        let different = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), different);
    }
}
