//! The report: medians, quartiles and ratios of all points that were measured on one link.

use std::path::{Path as File, PathBuf};

use anyhow::Result;
use rig::machine::BenchProcessUsage;
use serde_json::{Value, json};

use crate::far::load::FarLoadResult;
use crate::far::wan::{BenchWan, LinkSpec};

/// The measured values of one load (point) in one round.
#[derive(Clone, Debug)]
pub struct FarPoint {
    name: String,
    /// The throughput in bytes per second.
    rate: f64,
    /// The median latency in milliseconds; `None` if no latencies were recorded.
    p50: Option<f64>,
    /// The 99th percentile of the latency in milliseconds.
    p99: Option<f64>,
    /// Number of packets dropped at the full queue of the link, per MiB that the link delivered.
    drops: f64,
    /// CPU time of each process in milliseconds, per MiB that the link delivered.
    cpu: Vec<(&'static str, f64)>,
}

impl FarPoint {
    /// Makes a point for a load that ran at the same time as the load of another point. Only its
    /// throughput was measured.
    pub fn beside(name: &str, outcome: &FarLoadResult) -> FarPoint {
        let rate = outcome.bytes as f64 / outcome.time.as_secs_f64();
        FarPoint { name: name.to_owned(), rate, p50: None, p99: None, drops: 0.0, cpu: Vec::new() }
    }
}

/// Runs `measure`. Before and after it, reads the counters of the link emulator and the CPU time of
/// `processes`.
pub fn measure(
    wan: &BenchWan,
    name: &str,
    processes: &[(&'static str, u32)],
    measure: impl FnOnce() -> Result<FarLoadResult>,
) -> Result<FarPoint> {
    let used = || {
        let of = |(_, id): &(&str, u32)| BenchProcessUsage::of(*id);
        processes.iter().map(of).collect::<Result<Vec<_>>>()
    };
    let (before, used_before) = (wan.traffic()?, used()?);
    let outcome = measure()?;
    let (after, used_after) = (wan.traffic()?, used()?);
    let passed = (after.bytes - before.bytes) as f64 / MIB;
    let usage = used_before.iter().zip(&used_after).map(|(before, after)| after.since(*before));
    let cpu = |usage: BenchProcessUsage| usage.cpu_ns as f64 / 1e6 / passed.max(1e-9);
    let milliseconds = |part: f64| {
        let nanoseconds = outcome.latency.value_at_quantile(part);
        (!outcome.latency.is_empty()).then_some(nanoseconds as f64 / 1e6)
    };
    Ok(FarPoint {
        name: name.to_owned(),
        rate: outcome.bytes as f64 / outcome.time.as_secs_f64(),
        p50: milliseconds(0.5),
        p99: milliseconds(0.99),
        drops: (after.dropped - before.dropped) as f64 / passed.max(1e-9),
        cpu: processes.iter().map(|(name, _)| *name).zip(usage.map(cpu)).collect(),
    })
}

const MIB: f64 = (1u64 << 20) as f64;

/// The points of all rounds that were measured on one link with one congestion control.
pub struct FarFigures {
    link: String,
    control: String,
    programs: Vec<(String, Vec<Vec<FarPoint>>)>,
    /// The points of the current round, for each program. [`FarFigures::keep`] or [`FarFigures::forget`] ends the
    /// round.
    pending: Vec<(String, Vec<FarPoint>)>,
    tainted: Vec<String>,
}

impl FarFigures {
    /// Creates an empty report on these programs.
    pub fn new(spec: &LinkSpec, control: &str, programs: &[(String, PathBuf)]) -> FarFigures {
        FarFigures {
            link: spec.to_string(),
            control: control.to_owned(),
            programs: programs.iter().map(|(name, _)| (name.clone(), Vec::new())).collect(),
            pending: Vec::new(),
            tainted: Vec::new(),
        }
    }

    /// Adds points of a program to the current round.
    pub fn take(&mut self, program: &str, points: Vec<FarPoint>) {
        self.pending.push((program.to_owned(), points));
    }

    /// Discards the points of the current round, for example because other work has disturbed it.
    pub fn forget(&mut self) {
        self.pending.clear();
    }

    /// Ends the current round and keeps its points. `tainted` is the reason why they may be wrong,
    /// if there is one.
    pub fn keep(&mut self, tainted: Option<String>) {
        self.tainted.extend(tainted);
        for (name, points) in self.pending.drain(..) {
            if let Some((_, rounds)) = self.programs.iter_mut().find(|(known, _)| *known == name) {
                rounds.push(points);
            }
        }
    }

    /// Prints a Markdown table for each program.
    pub fn print(&self) {
        for (program, rounds) in &self.programs {
            println!("\n{program}: {}, {}, {} rounds", self.link, self.control, rounds.len());
            println!(
                "| {:<38} | {:>7} | {:>17} | {:>7} | {:>9} | {:>7} | {:>7} | {:>8} | {:<30} |",
                "point",
                "MB/s",
                "quartiles",
                "of bulk",
                "of direct",
                "p50 ms",
                "p99 ms",
                "drops/MiB",
                "CPU, ms/MiB"
            );
            for row in self.rows(rounds) {
                println!("{row}");
            }
        }
        for reason in &self.tainted {
            println!("tainted: {reason}");
        }
    }

    fn rows(&self, rounds: &[Vec<FarPoint>]) -> Vec<String> {
        let Some(first) = rounds.first() else { return Vec::new() };
        let column = |at: usize, value: &dyn Fn(&FarPoint) -> f64| {
            FarQuartiles::of(rounds.iter().map(|points| value(&points[at])).collect())
        };
        let number =
            |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
        let mut rows = Vec::new();
        for (at, point) in first.iter().enumerate() {
            let peers = Peers::of(first, &point.name);
            let ratio = |peer: Option<usize>| {
                let peer = peer?;
                let ratios =
                    rounds.iter().map(|points| points[at].rate / points[peer].rate).collect();
                Some(FarQuartiles::of(ratios).median)
            };
            let rate = column(at, &|point| point.rate / 1e6);
            let latency = |value: &dyn Fn(&FarPoint) -> Option<f64>| {
                value(point).map(|_| column(at, &|point| value(point).unwrap_or_default()).median)
            };
            let cpu: Vec<String> = (0..point.cpu.len())
                .map(|which| {
                    let spread = column(at, &|point| point.cpu[which].1);
                    format!("{} {:.2}", point.cpu[which].0, spread.median)
                })
                .collect();
            rows.push(format!(
                "| {:<38} | {:>7.2} | {:>7.2} to {:>6.2} | {:>7} | {:>9} | {:>7} | {:>7} | {:>8.2}  | {:<30} |",
                point.name,
                rate.median,
                rate.low,
                rate.high,
                number(ratio(peers.bulk)),
                number(ratio(peers.direct)),
                number(latency(&|point| point.p50)),
                number(latency(&|point| point.p99)),
                column(at, &|point| point.drops).median,
                cpu.join(", "),
            ));
        }
        rows
    }

    fn json(&self) -> Value {
        let point = |point: &FarPoint| {
            let cpu: Vec<Value> = point
                .cpu
                .iter()
                .map(|(name, cpu)| json!({"process": name, "ms_per_mib": cpu}))
                .collect();
            json!({
                "point": point.name, "bytes_per_second": point.rate, "p50_ms": point.p50,
                "p99_ms": point.p99, "drops_per_mib": point.drops, "cpu": cpu,
            })
        };
        let rounds = |rounds: &Vec<Vec<FarPoint>>| -> Vec<Vec<Value>> {
            rounds.iter().map(|points| points.iter().map(point).collect()).collect()
        };
        let programs: Vec<Value> = self
            .programs
            .iter()
            .map(|(name, list)| json!({"program": name, "rounds": rounds(list)}))
            .collect();
        json!({
            "link": self.link, "congestion": self.control, "programs": programs, "tainted": self.tainted,
        })
    }
}

/// The indexes of the points with which a gateway's point is compared: the bulk TCP stream, and a
/// host that uses the node directly.
struct Peers {
    bulk: Option<usize>,
    direct: Option<usize>,
}

impl Peers {
    fn of(points: &[FarPoint], name: &str) -> Peers {
        let find = |wanted: &str| points.iter().position(|point| point.name == wanted);
        let is_drained = name == "bulk TCP, the bytes of the drain";
        let is_write = is_drained
            || ["drain", "writes", "sustained"].iter().any(|word| name.starts_with(word));
        let bulk = if is_write { "bulk TCP, to the far end" } else { "bulk TCP, from the far end" };
        let direct = match name {
            "drain" | "sustained writes, depth 32, gateway" => find("writes, depth 32, direct"),
            "random reads, full link" => find("random reads, idle link"),
            _ => name.strip_suffix("gateway").and_then(|stem| find(&format!("{stem}direct"))),
        };
        let bulk = (is_drained || !name.starts_with("bulk") && !name.starts_with("random"))
            .then(|| find(bulk))
            .flatten();
        Peers { bulk, direct }
    }
}

struct FarQuartiles {
    low: f64,
    median: f64,
    high: f64,
}

impl FarQuartiles {
    fn of(mut values: Vec<f64>) -> FarQuartiles {
        values.sort_by(f64::total_cmp);
        let at = |part: f64| values[((values.len() - 1) as f64 * part).round() as usize];
        FarQuartiles { low: at(0.25), median: at(0.5), high: at(0.75) }
    }
}

/// Writes all points of all rounds and links as JSON.
pub fn write_json(file: &File, all: &[FarFigures]) -> Result<()> {
    let links: Vec<Value> = all.iter().map(FarFigures::json).collect();
    std::fs::write(file, serde_json::to_string_pretty(&json!({ "links": links }))?)?;
    Ok(())
}
