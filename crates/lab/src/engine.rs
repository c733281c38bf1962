//! Runs the points of an experiment in order, each as often as it specifies, and stores each result
//! as soon as it is known. If a point fails, the run continues with the next one.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    Error, ExperimentPoint, PointRecord, PointRunResult, Results, Scene, results::settings,
};

/// Receives the progress of a run.
pub trait Watcher {
    /// Called when a point begins. `left` is the estimated time for this point and all later ones.
    fn begins(&mut self, point: &ExperimentPoint, number: usize, of: usize, left: Duration);
    /// Called when a point has ended. `result` is its record, or the reason why the point has no record.
    fn ends(&mut self, point: &ExperimentPoint, result: Result<&PointRecord, &str>);
}

/// The number of points that a run has measured, and how the run ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LabRunSummary {
    pub measured: usize,
    pub failed: usize,
    /// True if the run was stopped before all points were measured.
    pub stopped: bool,
    /// The error that occurred while a site was removed; `None` if there was none.
    pub untidy: Option<String>,
}

/// Estimated seconds to set up a site: to start processes, make a file system and an empty log.
pub const SETTING_UP: f64 = 2.0;

/// Runs these points. Setting `stop` ends the run early.
///
/// # Errors
/// If a result cannot be written. The run ends, since later results would be lost, too.
pub fn run(
    points: &[ExperimentPoint],
    scene: &mut dyn Scene,
    results: &mut Results,
    watcher: &mut dyn Watcher,
    stop: &AtomicBool,
) -> Result<LabRunSummary, Error> {
    let mut ended = LabRunSummary::default();
    let mut pace = EstimateCorrection::default();
    for (number, point) in points.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            ended.stopped = true;
            break;
        }
        watcher.begins(point, number + 1, points.len(), pace.left(&points[number..]));
        let begun = Instant::now();
        let result = measure(point, scene);
        pace.took(&points[..=number], begun.elapsed());
        match result {
            Ok(record) => {
                watcher.ends(point, Ok(&record));
                results.measured(record)?;
                ended.measured += 1;
            }
            Err(_) if stop.load(Ordering::Relaxed) => {
                ended.stopped = true;
                break;
            }
            Err(error) => {
                let reason = error.to_string();
                watcher.ends(point, Err(&reason));
                results.left_out(&point.name, &reason)?;
                ended.failed += 1;
                // Stop all processes of the failed point, so that it does not affect the next one.
                if let Err(error) = scene.clear() {
                    ended.untidy = Some(error.to_string());
                }
            }
        }
    }
    if let Err(error) = scene.clear() {
        ended.untidy = Some(error.to_string());
    }
    Ok(ended)
}

/// Runs a point as often as it specifies and returns the record of the median run.
fn measure(point: &ExperimentPoint, scene: &mut dyn Scene) -> Result<PointRecord, Error> {
    let (begun, began) = (Instant::now(), SystemTime::now());
    scene.set(&point.site)?;
    let mut found = Vec::new();
    for _ in 0..point.runs.max(1) {
        found.push(scene.run(point)?);
    }
    let first = |found: &PointRunResult| {
        found.outcome.figures.first().map_or(f64::NAN, |figure| figure.value)
    };
    let runs: Vec<f64> = found.iter().map(first).collect();
    if runs.iter().any(|value| !value.is_finite()) {
        return Err(Error::Settings("the workload reported no figure".to_owned()));
    }
    // Keep the taints of all runs, since each can change which run is the median.
    let mut taints: Vec<String> = Vec::new();
    for (number, run) in (1..).zip(&found) {
        for taint in &run.taints {
            let taint = match found.len() {
                1 => taint.clone(),
                of => format!("run {number} of {of}: {taint}"),
            };
            taints.push(taint);
        }
    }
    let PointRunResult { outcome, counted, notes, .. } = found.swap_remove(median(&runs));
    Ok(PointRecord {
        point: point.name.clone(),
        settings: settings(point),
        // The fields in `maker` are empty here; `Results` sets them when it stores the record.
        maker: BTreeMap::new(),
        outcome,
        runs,
        counted,
        taints,
        notes,
        began: began.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        took: begun.elapsed().as_secs_f64(),
    })
}

/// Returns the index of the median in `values`. If the number of values is even, returns the index of the lower of the
/// two in the middle.
fn median(values: &[f64]) -> usize {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    order[(order.len() - 1) / 2]
}

/// Returns the estimated time in seconds to run these points: the sum of their own estimates, and the time to set up
/// each site. A site takes no time to set up if the site of the preceding point can be changed into it.
#[must_use]
pub fn estimate(points: &[ExperimentPoint]) -> f64 {
    (0..points.len()).map(|number| said(&points[..=number])).sum()
}

/// Returns the estimated time in seconds to run the last of these points directly after the others.
fn said(points: &[ExperimentPoint]) -> f64 {
    let Some((point, before)) = points.split_last() else { return 0.0 };
    let stands = before.last().is_some_and(|it| it.site.can_become(&point.site));
    f64::from(point.runs.max(1)) * point.seconds + if stands { 0.0 } else { SETTING_UP }
}

/// Corrects estimates by the ratio of measured to estimated time of the earlier points.
#[derive(Default)]
struct EstimateCorrection {
    said: f64,
    took: f64,
}

/// Weight of the estimates, in seconds: the correction behaves as if points of this total time had taken exactly as
/// long as estimated. Therefore the measured times of the first few points change the correction only a little.
const TRUSTED: f64 = 20.0;

impl EstimateCorrection {
    fn took(&mut self, points: &[ExperimentPoint], took: Duration) {
        self.said += said(points);
        self.took += took.as_secs_f64();
    }

    fn left(&self, points: &[ExperimentPoint]) -> Duration {
        let factor = (self.took + TRUSTED) / (self.said + TRUSTED);
        Duration::from_secs_f64((estimate(points) * factor).clamp(0.0, 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LabSite, results::tests::point};
    use std::sync::atomic::AtomicU32;
    use workload::WorkloadResult;

    /// A scene for tests, which runs no program and only records the calls.
    #[derive(Default)]
    struct Fake<'a> {
        acts: Vec<String>,
        stands: Option<LabSite>,
        fails: &'a str,
        stop: Option<(&'a str, &'a AtomicBool)>,
        runs: AtomicU32,
    }

    impl Scene for Fake<'_> {
        fn set(&mut self, site: &LabSite) -> Result<(), Error> {
            if self.stands.as_ref() != Some(site) {
                self.acts.push(format!("set {}", site.session.connections));
                self.stands = Some(site.clone());
            }
            Ok(())
        }

        fn run(&mut self, point: &ExperimentPoint) -> Result<PointRunResult, Error> {
            self.acts.push(format!("run {}", point.name));
            if let Some((_, stop)) = self.stop.filter(|(name, _)| *name == point.name) {
                stop.store(true, Ordering::Relaxed);
                return Err(program::Error::Stopped.into());
            }
            if point.name == self.fails {
                return Err(Error::Settings("it broke".to_owned()));
            }
            // The values are 3, 2, 1, 3, 2, 1, …
            let value = f64::from((self.runs.fetch_add(2, Ordering::Relaxed) + 2) % 3 + 1);
            let taints = if value > 2.5 { vec!["late".to_owned()] } else { Vec::new() };
            Ok(PointRunResult {
                outcome: WorkloadResult::default().figure("rate", "1/s", value),
                taints,
                ..PointRunResult::default()
            })
        }

        fn clear(&mut self) -> Result<(), Error> {
            self.acts.push("clear".to_owned());
            self.stands = None;
            Ok(())
        }
    }

    #[derive(Default)]
    struct Seen(Vec<String>);

    impl Watcher for Seen {
        fn begins(&mut self, point: &ExperimentPoint, number: usize, of: usize, left: Duration) {
            self.0.push(format!("{} {number}/{of} {:.0}", point.name, left.as_secs_f64()));
        }

        fn ends(&mut self, point: &ExperimentPoint, result: Result<&PointRecord, &str>) {
            if let Err(reason) = result {
                self.0.push(format!("{}: {reason}", point.name));
            }
        }
    }

    fn all() -> Vec<ExperimentPoint> {
        let mut points: Vec<ExperimentPoint> = ["a", "b", "c"].into_iter().map(point).collect();
        points[2].site.session.connections = 4;
        points
    }

    #[test]
    fn points_run_in_order_and_an_unchanged_site_is_set_up_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        let (mut scene, mut seen) = (Fake::default(), Seen::default());
        let stop = AtomicBool::new(false);
        let ended = run(&all(), &mut scene, &mut results, &mut seen, &stop).unwrap();
        assert_eq!(scene.acts, ["set 1", "run a", "run b", "set 4", "run c", "clear"]);
        assert_eq!(ended, LabRunSummary { measured: 3, ..LabRunSummary::default() });
        assert_eq!(results.of_all(&all()).0.len(), 3);
        assert_eq!(seen.0[0], "a 1/3 7", "three of a second, two sites of two");
    }

    #[test]
    fn a_point_that_fails_is_left_out_with_its_reason_and_the_next_has_a_new_site() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        let mut scene = Fake { fails: "a", ..Fake::default() };
        let (mut seen, stop) = (Seen::default(), AtomicBool::new(false));
        let ended = run(&all(), &mut scene, &mut results, &mut seen, &stop).unwrap();
        assert_eq!(
            scene.acts,
            ["set 1", "run a", "clear", "set 1", "run b", "set 4", "run c", "clear"]
        );
        assert_eq!((ended.measured, ended.failed), (2, 1));
        assert!(seen.0.contains(&"a: it broke".to_owned()), "{:?}", seen.0);
        let (records, left_out) = results.of_all(&all());
        assert_eq!((records.len(), &*left_out[0].left_out), (2, "it broke"));
    }

    #[test]
    fn a_stopped_run_loses_only_the_point_that_is_being_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        let stop = AtomicBool::new(false);
        let mut scene = Fake { stop: Some(("b", &stop)), ..Fake::default() };
        let mut seen = Seen::default();
        let ended = run(&all(), &mut scene, &mut results, &mut seen, &stop).unwrap();
        assert!(ended.stopped && ended.measured == 1 && ended.failed == 0, "{ended:?}");
        assert_eq!(scene.acts.last().unwrap(), "clear");
        let (records, left_out) = results.of_all(&all());
        assert_eq!((records.len(), left_out.len()), (1, 0), "a later run can continue");
    }

    #[test]
    fn the_median_of_several_runs_of_a_point_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::open(folder.path()).unwrap();
        let points = [ExperimentPoint { runs: 3, ..point("a") }];
        let (mut scene, stop) = (Fake::default(), AtomicBool::new(false));
        run(&points, &mut scene, &mut results, &mut Seen::default(), &stop).unwrap();
        let record = results.of(&points[0]).unwrap();
        assert_eq!(
            (&record.runs[..], record.outcome.get("rate")),
            (&[3.0, 2.0, 1.0][..], Some(2.0))
        );
        assert_eq!(record.taints, ["run 1 of 3: late"], "though it is not the run that counts");
        assert_eq!(median(&[4.0, 1.0]), 1);
    }

    #[test]
    fn an_estimate_is_corrected_by_the_time_that_points_took() {
        let points = all();
        assert_eq!(estimate(&points), 3.0 + 2.0 * SETTING_UP);
        let mut pace = EstimateCorrection::default();
        pace.took(&points[..1], Duration::from_secs(3));
        assert_eq!(pace.left(&points[..1]), Duration::from_secs(3));
        pace.took(&points[..1], Duration::from_secs(1000));
        assert!(pace.left(&points[..1]) > Duration::from_secs(100));
    }
}
