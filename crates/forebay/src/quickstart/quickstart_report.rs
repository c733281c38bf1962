//! The report of quickstart: as data, as JSON and as a table.

use comfy_table::{Cell, CellAlignment};
use config::quantity::about;
use serde::Serialize;

use super::load::{QuickstartLoadKind, QuickstartLoadResult};
use crate::{relay_link::RelayTraffic, table::table};

#[derive(Clone, Debug, Serialize)]
pub struct QuickstartReport {
    pub version: &'static str,
    /// Time of the run (RFC 3339).
    pub date: String,
    pub machine: QuickstartMachine,
    pub delay_one_way_ms: f64,
    pub rate_bits_per_second: u64,
    /// The result of each part of the load, once directly on the node and once through the gateway.
    pub parts: Vec<PartOutcome>,
    pub crash: Crash,
}

/// Properties of the machine that affect the results.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartMachine {
    /// Number of CPUs that the process may use.
    pub cpus: usize,
    pub kernel: String,
}

/// The result of one kind of load, with or without the gateway.
#[derive(Clone, Debug, Serialize)]
pub struct PartOutcome {
    pub part: &'static str,
    pub depth: usize,
    /// `node` (directly over the link) or `gateway`.
    pub way: &'static str,
    pub operations: u64,
    pub operations_per_second: f64,
    pub bytes_per_second: f64,
    pub seconds: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds.
    pub p50_us: u64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: u64,
    /// Longest latency in microseconds.
    pub max_us: u64,
    /// Pairs of percentile and latency in microseconds.
    pub percentiles_us: Vec<(f64, u64)>,
    /// Traffic on the link during this load, including destage and read-ahead.
    pub link: RelayTraffic,
    /// Share of the reads that the gateway answered from its memory or log; `None` without the gateway.
    pub hit_ratio: Option<f64>,
    pub blocks_wrong: u64,
}

/// The result of the crash: the gateway was killed during writes and started again, and every block was read.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crash {
    /// Number of writes that the gateway had acknowledged when it was killed.
    pub writes_acknowledged: u64,
    /// Dirty bytes in the gateway's log, as reported at most 50 ms before the kill.
    pub dirty_bytes_at_kill: u64,
    /// Time in milliseconds between the start of the new gateway process and the moment at which it listened.
    pub recovered_ms: u64,
    /// Number of blocks of 4 KiB with an acknowledged version. All were read again through the gateway.
    pub blocks_verified: u64,
    /// Number of blocks that had neither the last acknowledged nor a later submitted version when they were read
    /// through the restarted gateway.
    pub blocks_lost: u64,
    /// True if the log was destaged completely within the time limit.
    pub destaged: bool,
    /// Number of blocks that were read directly at the node after the destage.
    pub blocks_verified_at_node: u64,
    /// Number of blocks with wrong content when the volume was read directly at the node, without the gateway.
    pub blocks_lost_at_node: u64,
}

/// The percentiles that the latency curve shows.
const SHARES: [f64; 15] =
    [1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 100.0];

impl PartOutcome {
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
    pub fn nothing_lost(&self) -> bool {
        let wrong: u64 = self.parts.iter().map(|part| part.blocks_wrong).sum();
        wrong + self.crash.blocks_lost + self.crash.blocks_lost_at_node == 0
    }

    /// Returns the operations per second of this part in relation to those of the same part directly on the node.
    /// Returns `None` for a part that ran on the node itself, and if the node completed no operation.
    pub fn gain(&self, part: &PartOutcome) -> Option<f64> {
        let is_same = |other: &&PartOutcome| other.part == part.part && other.way == "node";
        let node = self.parts.iter().find(is_same)?.operations_per_second;
        (part.way != "node" && node > 0.0).then(|| part.operations_per_second / node)
    }

    pub fn table(&self) -> String {
        let mut table = table(&[
            "part",
            "way",
            "depth",
            "operations/s",
            "times the node",
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
                part.depth.to_string(),
                format!("{:.0}", part.operations_per_second),
                self.gain(part).map_or(String::new(), gain),
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
            let mut cells: [String; 11] = Default::default();
            cells[9] = blocks.to_string();
            cells[10] = lost.to_string();
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

fn row(names: [&str; 2], cells: [String; 11]) -> Vec<Cell> {
    let right = cells.into_iter().map(|text| Cell::new(text).set_alignment(CellAlignment::Right));
    names.into_iter().map(Cell::new).chain(right).collect()
}

/// Formats a ratio for people: below 10 with one digit after the point, such as `3.1`, otherwise with none, such as
/// `12`.
pub fn gain(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.1}") } else { format!("{ratio:.0}") }
}

pub fn time(micros: f64) -> String {
    match micros {
        ..1000.0 => format!("{micros:.0} µs"),
        ..100_000.0 => format!("{:.2} ms", micros / 1000.0),
        ..1_000_000.0 => format!("{:.0} ms", micros / 1000.0),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_two_digits_or_more() {
        assert_eq!([gain(0.5), gain(9.94), gain(10.0), gain(203.4)], ["0.5", "9.9", "10", "203"]);
    }
}
