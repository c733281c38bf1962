//! `forebay status --check`: prints one line and returns an exit code, as plug-ins of Nagios and related monitors do
//! (Monitoring Plugins Development Guidelines, "Plugin Return Codes").

use std::{collections::BTreeMap, process::ExitCode};

use config::quantity::about;
use control::{Failure, HealthLevel, LayerFigures, ServingStatus};

use crate::output::print_line;

/// All problems are absent: hosts are served and every reserve is available.
const OK: u8 = 0;
/// Hosts are served, but an operator should act.
const WARNING: u8 = 1;
/// Hosts get errors or must wait, or soon will, or data is lost.
const CRITICAL: u8 = 2;
/// Exit code if the process does not run, does not answer, or its answer cannot be read.
const UNKNOWN: u8 = 3;

/// Prints the line for the status that `ask` returns, and returns the exit code.
pub fn run(ask: impl FnOnce() -> Result<ServingStatus, Failure>) -> Result<ExitCode, Failure> {
    let (line, code) = match ask() {
        Ok(status) => verdict(&status),
        Err(failure) => (format!("UNKNOWN: {}", one_line(&failure.message)), UNKNOWN),
    };
    // A monitor must not mistake a failure to print for a warning.
    print_line(line).map_err(|failure| Failure { code: UNKNOWN, ..failure })?;
    Ok(ExitCode::from(code))
}

fn verdict(status: &ServingStatus) -> (String, u8) {
    let problems = status.problems();
    let (word, code) = match HealthLevel::of(problems.iter().map(|(_, problem)| problem)) {
        HealthLevel::Fine => ("OK", OK),
        HealthLevel::Warning => ("WARNING", WARNING),
        HealthLevel::Critical => ("CRITICAL", CRITICAL),
    };
    let problems: Vec<_> =
        problems.iter().map(|(name, problem)| format!("{name}: {}", problem.message)).collect();
    let text = if problems.is_empty() { served(status) } else { problems.join("; ") };
    (format!("{word}: {text}"), code)
}

/// Describes the number of volumes and their dirty data. The log of a gateway has data for its far volume, and the log of
/// a node (`report = "at-flush"`) data for its volume file.
fn served(status: &ServingStatus) -> String {
    let volumes: usize = status.targets.iter().map(|target| target.units.len()).sum();
    let units: Vec<_> = status.targets.iter().flat_map(|target| &target.units).collect();
    let dirty = |is_near: bool| -> Option<u64> {
        // Count each log once, since several units may share it.
        let logs: BTreeMap<_, _> = units
            .iter()
            .filter(|unit| unit.remote().is_some() == is_near)
            .flat_map(|unit| &unit.layers)
            .filter_map(|layer| match &layer.figures {
                LayerFigures::Cache(cache) => Some((&layer.on, cache.dirty.dirty_bytes)),
                _ => None,
            })
            .collect();
        (!logs.is_empty()).then(|| logs.values().sum())
    };
    let noun = if volumes == 1 { "volume" } else { "volumes" };
    let mut line = format!("{volumes} {noun} served");
    for (is_near, place) in [(true, "on the far volume"), (false, "in the volume file")] {
        if let Some(bytes) = dirty(is_near) {
            line += &format!(", {} not {place} yet", about(bytes));
        }
    }
    line
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use control::{
        CacheFigures, FarLinkState, LayerStatus, RefusedStatus, RemoteFigures, ServingPhase,
        TargetStatus, UnitStatus,
    };

    use super::*;

    fn status(change: impl FnOnce(&mut CacheFigures)) -> ServingStatus {
        let mut cache = CacheFigures::default();
        cache.dirty.dirty_bytes = 1536;
        change(&mut cache);
        let layer = LayerStatus {
            layer: "cache".to_owned(),
            on: "/log".to_owned(),
            figures: LayerFigures::Cache(Box::new(cache)),
        };
        let mut remote = RemoteFigures::default();
        remote.session.link = FarLinkState::Up;
        let remote = LayerStatus {
            layer: "remote".to_owned(),
            figures: LayerFigures::Remote(Box::new(remote)),
            ..LayerStatus::default()
        };
        let unit = UnitStatus { layers: vec![remote, layer], ..UnitStatus::default() };
        let target =
            TargetStatus { name: "iqn.x".to_owned(), units: vec![unit], ..TargetStatus::default() };
        ServingStatus {
            state: ServingPhase::Serving,
            targets: vec![target],
            ..ServingStatus::default()
        }
    }

    #[track_caller]
    fn check(status: &ServingStatus, line: &str, code: u8) {
        assert_eq!(verdict(status), (line.to_owned(), code));
    }

    #[test]
    fn the_dirty_data_of_a_node_is_not_attributed_to_a_far_volume() {
        let mut node = status(|_| ());
        node.targets[0].units[0].layers.remove(0);
        check(&node, "OK: 1 volume served, 1.5 KiB not in the volume file yet", 0);
        let mut both = status(|_| ());
        let unit = node.targets[0].units[0].clone();
        both.targets[0].units.extend([unit.clone(), unit]);
        let line = "OK: 3 volumes served, 1.5 KiB not on the far volume yet, \
                    1.5 KiB not in the volume file yet";
        check(&both, line, 0);
    }

    #[test]
    fn the_most_urgent_problem_decides_the_exit_code_and_is_shown_first() {
        check(&status(|_| ()), "OK: 1 volume served, 1.5 KiB not on the far volume yet", 0);
        let away = |cache: &mut CacheFigures| cache.lower.lower_away_since = Some("9:00".into());
        let line = "WARNING: iqn.x/0: the far volume has not answered since 9:00";
        check(&status(away), line, 1);
        let mut full = status(|cache| {
            away(cache);
            cache.log.log_fill_percent = 96;
        });
        let line = "CRITICAL: iqn.x/0: the log is nearly full: 96 %; \
                    iqn.x/0: the far volume has not answered since 9:00";
        check(&full, line, 2);
        let refused = RefusedStatus { lun: 1, message: "it is\ngone".into(), remedy: None };
        full.targets[0].refused.push(refused);
        assert_eq!(verdict(&full).1, 2);
        assert!(!verdict(&full).0.contains('\n'));
    }

    #[test]
    fn a_process_that_starts_is_a_warning() {
        let starting = ServingStatus { pid: 7, ..ServingStatus::default() };
        check(&starting, "WARNING: process 7: it is starting", 1);
    }
}
