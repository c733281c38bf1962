//! Counters of a run: by how much each counter of the processes grew while the workload ran. The names come from the
//! JSON of the processes' status.

use std::{collections::BTreeMap, fs};

use control::ServingStatus;
use serde_json::{Map, Value};
use workload::WorkloadFigure;

/// Counters of the kernel and of programs, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StageCounters {
    counts: BTreeMap<String, f64>,
    /// For each timed action, the number of its calls and the sum of their times in microseconds.
    times: BTreeMap<String, (f64, f64)>,
}

/// Clock ticks per second in /proc (proc(5), sysconf(_SC_CLK_TCK)): 100 on every platform of Linux
/// that we support.
const TICKS: f64 = 100.0;

impl StageCounters {
    /// Returns the counters of a node or gateway and of its layers. Their names begin with `name`.
    pub fn of_status(name: &str, status: &ServingStatus) -> Self {
        let mut counted = Self::default();
        counted.add_all(name, status.counters.by_name());
        let units = status.targets.iter().flat_map(|target| &target.units);
        for layer in units.flat_map(|unit| &unit.layers) {
            counted.add_all(&format!("{name} {}", layer.layer), layer.figures.by_name());
        }
        counted
    }

    /// Reads the counters of a link from the link's JSON report.
    pub fn of_link(report: &Value) -> Self {
        let mut counted = Self::default();
        for way in ["near_to_far", "far_to_near"] {
            counted.add(&format!("link {way}"), &report[way]);
        }
        counted
    }

    /// Adds the processor time of a process, in seconds.
    pub fn add_processor(&mut self, name: &str, seconds: f64) {
        *self.counts.entry(format!("cpu {name}")).or_default() += seconds;
    }

    /// Returns the sum of the processor times of all processes, in seconds.
    pub fn processor(&self) -> f64 {
        self.processors().values().sum()
    }

    /// Returns the processor times in seconds, by name.
    pub fn processors(&self) -> BTreeMap<String, f64> {
        let times = self.counts.iter().filter(|(name, _)| name.starts_with("cpu "));
        times.map(|(name, time)| (name.clone(), *time)).collect()
    }

    /// Replaces the processor times by `times`, which were measured earlier.
    pub fn set_processors(&mut self, times: BTreeMap<String, f64>) {
        self.counts.extend(times);
    }

    pub fn join(&mut self, other: Self) {
        for (name, value) in other.counts {
            *self.counts.entry(name).or_default() += value;
        }
        self.times.extend(other.times);
    }

    /// Returns the differences to `before`. Counters that did not change are omitted.
    pub fn since(&self, before: &Self) -> Vec<WorkloadFigure> {
        let figure = |name: &str, unit: &str, value: f64| WorkloadFigure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            value,
        };
        let counts = self.counts.iter().filter_map(|(name, now)| {
            let more = now - before.counts.get(name).copied().unwrap_or(0.0);
            let unit = match name {
                it if it.starts_with("cpu ") => "s",
                it if it.ends_with("bytes") => "bytes",
                _ => "",
            };
            (more != 0.0).then(|| figure(name, unit, more))
        });
        let times = self.times.iter().filter_map(|(name, (calls, sum))| {
            let (calls_before, sum_before) = before.times.get(name).copied().unwrap_or_default();
            let calls = calls - calls_before;
            let mean = (sum - sum_before) / calls;
            (calls > 0.0 && mean.is_finite())
                .then(|| [figure(&format!("{name} calls"), "", calls), figure(name, "us", mean)])
        });
        counts.chain(times.flatten()).collect()
    }

    fn add(&mut self, name: &str, value: &Value) {
        match value {
            Value::Number(number) => {
                let number = number.as_f64().unwrap_or_default();
                *self.counts.entry(name.to_owned()).or_default() += number;
            }
            Value::Object(map) => {
                if let (Some(calls), Some(mean)) =
                    (number(map.get("count")), number(map.get("mean_us")))
                {
                    let time = self.times.entry(name.to_owned()).or_default();
                    *time = (time.0 + calls, time.1 + calls * mean);
                    return;
                }
                map.iter().for_each(|(key, value)| self.add(&format!("{name} {key}"), value));
            }
            _ => {}
        }
    }

    fn add_all(&mut self, name: &str, figures: Map<String, Value>) {
        figures.iter().for_each(|(key, value)| self.add(&format!("{name} {key}"), value));
    }
}

fn number(value: Option<&Value>) -> Option<f64> {
    value?.as_f64()
}

/// Returns the processor time of a process in seconds.
pub(crate) fn processor_of(process: u32) -> f64 {
    ticks(&format!("/proc/{process}/stat"), 14).unwrap_or(0.0)
}

/// Returns the processor time of this process, and that of its children that have ended and their
/// ended descendants, in seconds.
pub(crate) fn processor_here() -> (f64, f64) {
    let of = |field| ticks("/proc/self/stat", field).unwrap_or(0.0);
    (of(14), of(16))
}

/// Returns the sum of a field of a `stat` file (counted from 1, proc(5)) and the next field, in
/// seconds: user and system time.
fn ticks(path: &str, field: usize) -> Option<f64> {
    let stat = fs::read_to_string(path).ok()?;
    // Skip the second field, the program's name, which may contain any characters. The third field
    // follows it.
    let after = stat.rsplit_once(") ")?.1;
    let mut fields = after.split_whitespace().skip(field - 3).map(str::parse::<f64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) / TICKS)
}

/// Processor times of this machine since its start, of all processors, in seconds: all time, time
/// used by programs, and time stolen by the hypervisor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineCpuTime {
    pub all: f64,
    pub busy: f64,
    pub stolen: f64,
}

impl MachineCpuTime {
    /// Reads the processor times of the machine; all are zero if the system does not report them.
    pub fn now() -> Self {
        fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|stat| Self::parse(&stat))
            .unwrap_or_default()
    }

    /// Parses the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal
    /// (proc(5)).
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        let fields: Option<Vec<f64>> =
            line.split_whitespace().take(8).map(|field| field.parse().ok()).collect();
        let fields = fields.filter(|fields| fields.len() == 8)?;
        let busy = fields[0] + fields[1] + fields[2];
        let all = fields.iter().sum::<f64>();
        Some(Self { all: all / TICKS, busy: busy / TICKS, stolen: fields[7] / TICKS })
    }

    /// Returns the reasons why a measurement from `before` until now may be wrong. `ours` is the
    /// processor time of our own processes in that time.
    pub fn taints(self, before: Self, ours: f64) -> Vec<String> {
        let all = self.all - before.all;
        if all <= 0.0 {
            return Vec::new();
        }
        let stolen = (self.stolen - before.stolen) / all;
        let others = (self.busy - before.busy - ours) / all;
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mut taints = Vec::new();
        if stolen > STOLEN {
            taints.push(format!("{} of this machine's time was stolen", percent(stolen)));
        }
        if others > OTHERS {
            taints.push(format!(
                "other programs used {} of this machine's processors",
                percent(others)
            ));
        }
        taints
    }
}

/// A run is in doubt (tainted) if the hypervisor takes a larger share of the processors' time than this. The link has
/// the same limit.
const STOLEN: f64 = 0.01;
/// A run is in doubt (tainted) if other processes use a larger share of the processors' time than this. Kernel threads
/// that work for us (loop devices, journals) count as other processes: up to a tenth of two processors with PostMark.
const OTHERS: f64 = 0.2;

#[cfg(test)]
mod tests {
    use control::{
        CacheFigures, LayerFigures, LayerStatus, ProcessCounters, ResponseTimes, ServingCounters,
        TargetStatus, UnitStatus,
    };

    use super::*;

    fn status(reads: u64, calls: u64, mean: f64) -> ServingStatus {
        let mut counters = ServingCounters::default();
        counters.traffic.commands = calls;
        counters.traffic.commands_by_kind.insert("READ(10)".to_owned(), reads);
        let classes_us = vec![(1.0, 2)];
        counters.times.time_read =
            ResponseTimes { count: calls, mean_us: mean, classes_us, ..ResponseTimes::default() };
        let mut cache = CacheFigures::default();
        cache.requests.reads_lower = reads;
        "x".clone_into(&mut cache.epochs.order);
        cache.requests.read_bytes = 8;
        let layer = LayerStatus {
            layer: "cache".to_owned(),
            on: String::new(),
            figures: LayerFigures::Cache(Box::new(cache)),
        };
        let unit = UnitStatus { layers: vec![layer], ..UnitStatus::default() };
        let target = TargetStatus { units: vec![unit], ..TargetStatus::default() };
        ServingStatus {
            targets: vec![target],
            counters: ProcessCounters::Serving(Box::new(counters)),
            ..ServingStatus::default()
        }
    }

    #[test]
    fn counters_are_differences_and_times_are_means_of_the_interval() {
        let before = StageCounters::of_status("node 1", &status(5, 10, 100.0));
        let after = StageCounters::of_status("node 1", &status(7, 20, 200.0));
        let figures = after.since(&before);
        let get = |name: &str| figures.iter().find(|it| it.name == name).map(|it| it.value);
        assert_eq!(get("node 1 commands_by_kind READ(10)"), Some(2.0));
        assert_eq!(get("node 1 cache reads_lower"), Some(2.0));
        assert_eq!(get("node 1 cache read_bytes"), None, "it did not change");
        assert_eq!(get("node 1 time_read calls"), Some(10.0));
        assert_eq!(get("node 1 time_read"), Some(300.0));
        assert_eq!(before.since(&before), []);
        assert_eq!(
            StageCounters::of_status("x", &ServingStatus::default()),
            StageCounters::default()
        );
    }

    #[test]
    fn work_of_other_processes_taints_a_point() {
        let before = MachineCpuTime::parse("cpu  0 0 0 0 0 0 0 0\n").unwrap();
        let after = MachineCpuTime::parse("cpu  50 0 50 100 0 0 0 0 7 7\n").unwrap();
        assert_eq!(after.taints(before, 0.9), [""; 0]);
        assert_eq!(after.taints(before, 0.1).len(), 1);
        assert_eq!(before.taints(before, 0.0), [""; 0]);
        assert!(MachineCpuTime::parse("cpu 1 2").is_none() && MachineCpuTime::now().all > 0.0);
        assert!(processor_of(std::process::id()) >= 0.0);
    }
}
