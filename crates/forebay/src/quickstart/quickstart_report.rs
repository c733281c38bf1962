//! What quickstart found: as data, as JSON and as one table.

use comfy_table::{Cell, CellAlignment};
use serde::Serialize;

use super::load::{QuickstartLoadKind, QuickstartLoadResult};
use crate::{quantity::about, relay_link::RelayTraffic, table::table};

/// Everything that was measured and verified.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartReport {
    /// The program's version.
    pub version: &'static str,
    /// When it ran (RFC 3339).
    pub date: String,
    /// Where it ran.
    pub machine: QuickstartMachine,
    /// One-way delay of the link in milliseconds.
    pub delay_one_way_ms: f64,
    /// Rate of the link in bits per second.
    pub rate_bits_per_second: u64,
    /// The parts of the mix, straight to the node and through the gateway.
    pub parts: Vec<PartOutcome>,
    /// The crash.
    pub crash: Crash,
}

/// Where it ran.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartMachine {
    /// CPUs that the process may use.
    pub cpus: usize,
    /// The kernel's release.
    pub kernel: String,
}

/// One part of the mix on one of the two ways.
#[derive(Clone, Debug, Serialize)]
pub struct PartOutcome {
    /// What ran.
    pub part: &'static str,
    /// Operations under way at once.
    pub depth: usize,
    /// `node` (over the link) or `gateway`.
    pub way: &'static str,
    /// Completed operations.
    pub operations: u64,
    /// Per second.
    pub operations_per_second: f64,
    /// Bytes read or written per second.
    pub bytes_per_second: f64,
    /// How long it ran.
    pub seconds: f64,
    /// Latencies in microseconds.
    pub mean_us: f64,
    /// Half of all are faster.
    pub p50_us: u64,
    /// Ninety-nine of a hundred are faster.
    pub p99_us: u64,
    /// The slowest.
    pub max_us: u64,
    /// Latencies at these shares of all operations, in microseconds.
    pub percentiles_us: Vec<(f64, u64)>,
    /// What passed over the link meanwhile, destage and read-ahead included.
    pub link: RelayTraffic,
    /// Share of the reads that the gateway answered from its own memory or log.
    pub hit_ratio: Option<f64>,
    /// Blocks that were read and were wrong.
    pub blocks_wrong: u64,
}

/// The gateway killed while it writes, started again, and every block looked at.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crash {
    /// Writes acknowledged by the gateway before it was killed.
    pub writes_acknowledged: u64,
    /// Bytes in its log and not yet at the node, as it said 50 ms or less before the kill.
    pub dirty_bytes_at_kill: u64,
    /// From the start of the new process until it listens.
    pub recovered_ms: u64,
    /// Blocks of 4 KiB with an acknowledged version, all read again through the gateway.
    pub blocks_verified: u64,
    /// Of those, how many were not their last acknowledged or a later submitted version.
    pub blocks_lost: u64,
    /// Whether the log was destaged completely in the time given for it.
    pub destaged: bool,
    /// Blocks read again at the node after that.
    pub blocks_verified_at_node: u64,
    /// Of those, how many were wrong.
    pub blocks_lost_at_node: u64,
}

/// Shares at which the latency curve is sampled.
const SHARES: [f64; 15] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 100.0];

impl PartOutcome {
    /// From what was measured.
    pub fn new(
        part: QuickstartLoadKind,
        way: &'static str,
        measured: &QuickstartLoadResult,
        link: RelayTraffic,
        hit_ratio: Option<f64>,
    ) -> Self {
        let latency = &measured.latency;
        let seconds = measured.took.as_secs_f64();
        Self {
            part: part.name(),
            depth: part.depth(),
            way,
            operations: measured.operations,
            operations_per_second: measured.rate(),
            bytes_per_second: measured.bytes as f64 / seconds.max(1e-9),
            seconds,
            mean_us: latency.mean(),
            p50_us: latency.value_at_percentile(50.0),
            p99_us: latency.value_at_percentile(99.0),
            max_us: latency.max(),
            percentiles_us: SHARES.map(|at| (at, latency.value_at_percentile(at))).to_vec(),
            link,
            hit_ratio,
            blocks_wrong: measured.wrong,
        }
    }
}

impl QuickstartReport {
    /// Whether every block was what it must be.
    pub fn nothing_lost(&self) -> bool {
        let wrong: u64 = self.parts.iter().map(|part| part.blocks_wrong).sum();
        wrong + self.crash.blocks_lost + self.crash.blocks_lost_at_node == 0
    }

    /// The one table.
    pub fn table(&self) -> String {
        let mut table = table(&[
            "part",
            "way",
            "operations/s",
            "mean",
            "p50",
            "p99",
            "link bytes",
            "PDUs",
            "hits",
            "verified",
            "lost",
        ]);
        for part in &self.parts {
            let cells = [
                format!("{:.0}", part.operations_per_second),
                time(part.mean_us),
                time(part.p50_us as f64),
                time(part.p99_us as f64),
                about(part.link.bytes),
                part.link.pdus.to_string(),
                part.hit_ratio.map_or("-".into(), |ratio| format!("{:.1} %", ratio * 100.0)),
                String::new(),
                if part.blocks_wrong > 0 { part.blocks_wrong.to_string() } else { String::new() },
            ];
            table.add_row(row([part.part, part.way], cells));
        }
        let crash = &self.crash;
        let mut verified = |what: &str, way: &str, blocks: u64, lost: u64| {
            let mut cells: [String; 9] = Default::default();
            cells[7] = blocks.to_string();
            cells[8] = lost.to_string();
            table.add_row(row([what, way], cells));
        };
        verified("killed, started again", "gateway", crash.blocks_verified, crash.blocks_lost);
        if crash.destaged {
            let (blocks, lost) = (crash.blocks_verified_at_node, crash.blocks_lost_at_node);
            verified("after destage", "node", blocks, lost);
        }
        table.to_string()
    }
}

fn row(names: [&str; 2], cells: [String; 9]) -> Vec<Cell> {
    let right = cells.into_iter().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    names.into_iter().map(Cell::new).chain(right).collect()
}

/// Microseconds for a reader.
pub fn time(micros: f64) -> String {
    match micros {
        ..1000.0 => format!("{micros:.0} µs"),
        ..100_000.0 => format!("{:.2} ms", micros / 1000.0),
        ..1_000_000.0 => format!("{:.0} ms", micros / 1000.0),
        _ => format!("{:.2} s", micros / 1e6),
    }
}
