//! Finds measurements by the names of their points, for cells and curves of a report.

use std::collections::BTreeMap;

use workload::{WorkloadFigure, WorkloadSeries};

use crate::{
    Cell, Curve, LabSite, MeasuredRatio, NOT_MEASURED, PointRecord, SiteBacking, SiteDisk,
    SiteServer, not_measured,
};

/// The records of an experiment by the names of their points, and for each missing point the
/// reason.
#[derive(Clone, Debug, Default)]
pub struct MeasuredPoints<'a> {
    records: BTreeMap<&'a str, &'a PointRecord>,
    left_out: BTreeMap<String, String>,
}

impl<'a> MeasuredPoints<'a> {
    /// Indexes the records by point. If a point has several records, the last one is used.
    #[must_use]
    pub fn new(records: &'a [PointRecord]) -> Self {
        let records = records.iter().map(|record| (record.point.as_str(), record)).collect();
        Self { records, ..Self::default() }
    }

    /// Sets the reasons of missing points. A name also applies to all names that begin with it and
    /// a `/`, so that one entry can leave out a whole table.
    #[must_use]
    pub fn left_out<N: Into<String>, R: Into<String>>(
        mut self,
        points: impl IntoIterator<Item = (N, R)>,
    ) -> Self {
        let points = points.into_iter().map(|(name, reason)| (name.into(), reason.into()));
        self.left_out.extend(points);
        self
    }

    /// Returns the record of the point with this name; `None` if it was not measured.
    #[must_use]
    pub fn record(&self, point: &str) -> Option<&'a PointRecord> {
        self.records.get(point).copied()
    }

    /// Returns all records of points whose names begin with `start`, sorted by name.
    pub fn starting<'s>(&'s self, start: &'s str) -> impl Iterator<Item = &'a PointRecord> + 's {
        self.records
            .range(start..)
            .map(|(_, record)| *record)
            .take_while(move |record| record.point.starts_with(start))
    }

    /// Returns a figure of a point, converted to `unit`. The figure is one of the workload, or one
    /// that was counted during the run. With an empty name, returns the workload's first figure of
    /// the same kind as `unit`: for "ms" the first figure that is a time. Returns `None` if there
    /// is no such point or figure, or if its unit cannot be converted.
    #[must_use]
    pub fn value(&self, point: &str, figure: &str, unit: &str) -> Option<f64> {
        let figure = named(self.record(point)?, figure, unit)?;
        convert(figure.value, &figure.unit, unit)
    }

    /// Returns a figure like [`MeasuredPoints::value`], as a cell of a table: with the taints of
    /// the point, or with the reason why it is missing.
    #[must_use]
    pub fn cell(&self, point: &str, figure: &str, unit: &str) -> Cell {
        let Some(record) = self.record(point) else {
            return Cell::words(&self.why_not(point));
        };
        let Some(found) = named(record, figure, unit) else {
            return Cell::words(&format!("not measured: no figure `{figure}`"))
                .tainted(&record.taints);
        };
        match convert(found.value, &found.unit, unit) {
            Some(value) => {
                let cell = Cell::ours(value).tainted(&record.taints);
                let runs = self.runs(point, figure, unit).unwrap_or_default();
                let runs = runs.0.iter().filter_map(|run| convert(*run, &found.unit, unit));
                cell.of_runs(&runs.collect::<Vec<f64>>())
            }
            None => Cell::words(&format!("measured in {}, not in {unit}", found.unit))
                .tainted(&record.taints),
        }
    }

    /// Returns the ratio of a figure of one point to that of another one. If both points were run several times,
    /// returns one ratio for each run: that of the first runs, that of the second runs and so on. Returns no ratio if a
    /// point has no such figure.
    #[must_use]
    pub fn ratios(&self, [over, under]: [&str; 2], figure: &str, unit: &str) -> Vec<MeasuredRatio> {
        let whole = self.cell(over, figure, unit).by(&self.cell(under, figure, unit));
        let Some(whole) = MeasuredRatio::of(&whole) else { return vec![] };
        match [over, under].map(|point| self.runs(point, figure, unit)) {
            [Some((over, unit)), Some((under, same))]
                if unit == same && over.len() == under.len() && over.len() > 1 =>
            {
                let ratios = over.iter().zip(under).map(|(over, under)| over / under);
                let ratios = ratios.filter(|ratio| ratio.is_finite());
                ratios.map(|value| MeasuredRatio { value, ..whole }).collect()
            }
            _ => vec![whole],
        }
    }

    /// Returns the values of a figure in all runs of a point, with their unit. Records keep only a point's first figure
    /// for each run; other figures have one value.
    fn runs(&self, point: &str, figure: &str, unit: &str) -> Option<(&'a [f64], &'a str)> {
        let record = self.record(point)?;
        let (found, first) = (named(record, figure, unit)?, record.outcome.figures.first()?);
        std::ptr::eq(found, first).then_some((&record.runs, &first.unit))
    }

    /// Returns a curve of one figure. Each element of `points` is an x value and the name of a
    /// point. Points without the figure are left out.
    pub fn curve<N: AsRef<str>>(
        &self,
        name: &str,
        points: impl IntoIterator<Item = (f64, N)>,
        figure: &str,
        unit: &str,
    ) -> Curve {
        let points = points
            .into_iter()
            .filter_map(|(x, point)| Some([x, self.value(point.as_ref(), figure, unit)?]));
        Curve::ours(name, points)
    }

    /// Describes the storage of the points whose names begin with `start`, as words for a sentence:
    /// "a simulated disk (dnes) over memory, or a file on this machine's disk". Returns an empty
    /// text if no such point was measured.
    #[must_use]
    pub fn disks(&self, start: &str) -> String {
        let mut disks = vec![];
        for record in self.starting(start) {
            let site = record.settings.get("site").cloned();
            let Some(site) = site.and_then(|site| serde_json::from_value::<LabSite>(site).ok())
            else {
                continue;
            };
            let disk = described(&site);
            if !disks.contains(&disk) {
                disks.push(disk);
            }
        }
        match disks.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [others @ .., last] => format!("{}, or {last}", others.join(", ")),
        }
    }

    /// Returns a series of numbers, such as response times, from the workload of a point.
    #[must_use]
    pub fn series(&self, point: &str, name: &str) -> Option<&'a WorkloadSeries> {
        self.record(point)?.outcome.series.iter().find(|series| series.name == name)
    }

    /// Returns the reason why a point is missing.
    #[must_use]
    pub fn why_not(&self, point: &str) -> String {
        let covers = |name: &str| {
            point.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.left_out.iter().find(|(name, _)| covers(name)) {
            Some((_, reason)) => not_measured(reason),
            None => NOT_MEASURED.to_owned(),
        }
    }
}

fn described(site: &LabSite) -> String {
    let LabSite { disk: SiteDisk { data, model, more }, server, .. } = site;
    let data = match data {
        SiteBacking::Memory => "memory",
        SiteBacking::File => "a file on this machine's disk",
    };
    let disk = match model {
        Some(model) => {
            // Add the other settings of the disk model to its description.
            let more = more.iter().map(|(key, value)| format!(", {key} {value}"));
            format!("a simulated disk ({model}{}) over {data}", more.collect::<String>())
        }
        None => data.to_owned(),
    };
    match server {
        SiteServer::Forebay => disk,
        SiteServer::Tgt => format!("{disk}, served by tgt"),
        SiteServer::Nbdkit => format!("{disk}, served by nbdkit"),
        SiteServer::Host => format!("{disk}, the host's own"),
    }
}

fn named<'a>(record: &'a PointRecord, name: &str, unit: &str) -> Option<&'a WorkloadFigure> {
    if name.is_empty() {
        let mut figures = record.outcome.figures.iter();
        return figures
            .find(|figure| convert(figure.value, &figure.unit, unit).is_some())
            .or(record.outcome.figures.first());
    }
    record.outcome.figures.iter().chain(&record.counted).find(|figure| figure.name == name)
}

/// Converts a value to another unit of the same kind; `None` if the kinds differ.
fn convert(value: f64, from: &str, to: &str) -> Option<f64> {
    if from == to {
        return Some(value);
    }
    let ((kind, from), (other_kind, to)) = (unit(from)?, unit(to)?);
    (kind == other_kind).then(|| value * from / to)
}

/// Returns the kind of a unit (time, amount of data, throughput or rate), and the unit's size in seconds, bytes, bytes
/// per second or times per second.
fn unit(name: &str) -> Option<(&'static str, f64)> {
    Some(match name {
        "s" => ("time", 1.0),
        "ms" => ("time", 1e-3),
        "us" | "µs" => ("time", 1e-6),
        "ns" => ("time", 1e-9),
        "bytes" | "B" => ("size", 1.0),
        "KB" => ("size", 1e3),
        "MB" => ("size", 1e6),
        "GB" => ("size", 1e9),
        "KiB" => ("size", 1024.0),
        "MiB" => ("size", 1024.0 * 1024.0),
        "bytes/s" | "B/s" => ("flow", 1.0),
        "KB/s" => ("flow", 1e3),
        "MB/s" => ("flow", 1e6),
        "GB/s" => ("flow", 1e9),
        "KiB/s" => ("flow", 1024.0),
        "MiB/s" => ("flow", 1024.0 * 1024.0),
        "Mbit/s" | "Mb/s" => ("flow", 1e6 / 8.0),
        "Gbit/s" | "Gb/s" => ("flow", 1e9 / 8.0),
        "1/s" => ("rate", 1.0),
        "1/min" => ("rate", 1.0 / 60.0),
        "1/h" => ("rate", 1.0 / 3600.0),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use workload::WorkloadResult;

    use super::*;

    fn record(point: &str, figure: &str, unit: &str, value: f64) -> PointRecord {
        PointRecord {
            point: point.to_owned(),
            settings: serde_json::Value::Null,
            outcome: WorkloadResult::default().figure(figure, unit, value),
            maker: Default::default(),
            runs: vec![value],
            counted: vec![],
            taints: vec!["stolen time".to_owned()],
            notes: BTreeMap::new(),
            began: 0,
            took: 1.0,
        }
    }

    #[test]
    fn a_figure_is_returned_only_in_the_requested_unit() {
        let records = [record("table-1/null/0ms", "response", "us", 1500.0)];
        let measured = MeasuredPoints::new(&records);
        assert_eq!(measured.value("table-1/null/0ms", "response", "ms"), Some(1.5));
        assert_eq!(measured.value("table-1/null/0ms", "", "us"), Some(1500.0));
        assert_eq!(measured.value("table-1/null/0ms", "response", "MB/s"), None);
        let cell = measured.cell("table-1/null/0ms", "response", "MB/s");
        assert_eq!((cell.ours, cell.note.as_str()), (None, "measured in us, not in MB/s"));
    }

    #[test]
    fn a_figure_without_a_name_is_the_first_with_its_unit() {
        let mut mixed = record("a", "throughput", "MB/s", 7.0);
        mixed.outcome = mixed.outcome.figure("mean", "us", 1500.0).figure("p99", "us", 9000.0);
        let records = [mixed];
        let measured = MeasuredPoints::new(&records);
        assert_eq!(measured.value("a", "", "ms"), Some(1.5));
        assert_eq!(measured.value("a", "", "MB/s"), Some(7.0));
        assert_eq!(measured.value("a", "", "1/h"), None);
    }

    #[test]
    fn each_disk_model_of_the_nodes_is_named_once() {
        let with = |point: &str, model: Option<&str>| {
            let mut site = LabSite::default();
            site.disk.model = model.map(str::to_owned);
            let mut record = record(point, "mean", "ms", 1.0);
            record.settings = serde_json::json!({ "site": site });
            record
        };
        let records = [
            with("t/a", Some("dnes")),
            with("t/b", Some("dnes")),
            with("t/c", None),
            record("t/d", "", "", 0.0),
        ];
        let measured = MeasuredPoints::new(&records);
        assert_eq!(measured.disks("t/"), "a simulated disk (dnes) over memory, or memory");
        assert_eq!(measured.disks("u/"), "");
        let mut small = LabSite::default();
        small.disk.model = Some("array".to_owned());
        small.disk.more.insert("cache".to_owned(), "128KiB".to_owned());
        let mut told = record("v/a", "mean", "ms", 1.0);
        told.settings = serde_json::json!({ "site": small });
        assert_eq!(
            MeasuredPoints::new(&[told]).disks("v/"),
            "a simulated disk (array, cache 128KiB) over memory"
        );
    }

    #[test]
    fn a_cell_has_the_taints_of_its_point() {
        let records = [record("a", "time", "s", 2.0)];
        assert_eq!(MeasuredPoints::new(&records).cell("a", "time", "s").taints, ["stolen time"]);
    }

    #[test]
    fn each_pair_of_runs_has_a_ratio() {
        let with = |point: &str, runs: &[f64]| {
            let runs = runs.to_vec();
            let record = record(point, "throughput", "MB/s", runs[0]);
            PointRecord { runs, taints: vec![], ..record }
        };
        let mut records = [with("a", &[4.0, 6.0]), with("b", &[2.0, 2.0]), with("c", &[8.0])];
        let values = |records: &[PointRecord], points, figure| -> Vec<f64> {
            let ratios = MeasuredPoints::new(records).ratios(points, figure, "MB/s");
            ratios.iter().map(|ratio| ratio.value).collect()
        };
        assert_eq!(values(&records, ["a", "b"], ""), [2.0, 3.0]);
        assert_eq!(values(&records, ["c", "b"], ""), [4.0]);
        let cell = MeasuredPoints::new(&records).cell("a", "", "KB/s");
        assert_eq!(cell.quartiles, Some([4500.0, 5500.0]));
        assert_eq!(MeasuredPoints::new(&records).cell("c", "", "MB/s").quartiles, None);
        assert!(values(&records, ["a", "d"], "").is_empty());
        for record in &mut records {
            record.outcome = record.outcome.clone().figure("other", "MB/s", 7.0);
        }
        assert_eq!(values(&records, ["a", "b"], "other"), [1.0]);
        records[1].taints.push("late".to_owned());
        assert!(MeasuredPoints::new(&records).ratios(["a", "b"], "", "MB/s")[0].is_doubtful);
    }

    #[test]
    fn a_missing_value_shows_its_reason() {
        let left_out = [("table-2/surge", "nginx is not installed")];
        let measured = MeasuredPoints::new(&[]).left_out(left_out);
        let note = |point| measured.cell(point, "", "1/s").note;
        assert_eq!(note("table-2/surge/8ms"), "not measured: nginx is not installed");
        assert_eq!(note("table-2/surge-2/8ms"), "not measured");
    }

    #[test]
    fn a_curve_has_the_points_that_were_measured() {
        let records = [record("d/0ms", "time", "ms", 1.0), record("d/8ms", "time", "ms", 3.0)];
        let measured = MeasuredPoints::new(&records);
        let sweep = [0.0, 4.0, 8.0].map(|delay| (delay, format!("d/{delay}ms")));
        assert_eq!(measured.curve("d", sweep, "time", "ms").points, [[0.0, 1.0], [8.0, 3.0]]);
        assert_eq!(measured.starting("d/").count(), 2);
    }
}
