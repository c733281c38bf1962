//! Prints the status on one screen for an operator: one line per volume, problems, and totals.

use std::fmt::Write as _;

use config::quantity::about;
use control::{
    CacheClaim, CacheFigures, FarLinkState, HealthLevel, HealthProblem, RefusedStatus,
    ServingStatus, TargetStatus, UnitStatus,
};

use super::full::{attached_line, duration, first_line, pair_in_words};
use crate::table::plain_table;

const HEAD: [&str; 9] =
    ["volume", "health", "dirty", "oldest", "log", "lasts", "link", "claim", "last error"];
const NOTHING: &str = "-";

/// Returns a summary of the status that fits on one screen.
pub fn for_people(status: &ServingStatus) -> String {
    let mut text = first_line(status);
    text.extend(status.attached.as_ref().map(attached_line));
    let mut table = plain_table(&HEAD);
    for target in &status.targets {
        rows(target).into_iter().for_each(|row| _ = table.add_row(row));
    }
    if !table.is_empty() {
        let _ = writeln!(text, "\n{}", table.trim_fmt());
    }
    let problems = status.problems();
    if !problems.is_empty() {
        text.push('\n');
    }
    for (name, HealthProblem { level, message, remedy }) in problems {
        let _ = writeln!(text, "{level}: {name}: {message}");
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "  remedy: {remedy}");
        }
    }
    for target in &status.targets {
        if let Some(pair) = &target.pair {
            let _ = writeln!(text, "\n{}, of a pair: {}", target.name, pair_in_words(pair));
        }
    }
    text + &totals(status)
}

/// Returns one row per unit, served or not; for a target of a pair that serves no unit here, one row for the target.
fn rows(target: &TargetStatus) -> Vec<[String; 9]> {
    let pair = target.pair_problems();
    let served = target.units.iter().map(|unit| row(target, unit, &pair));
    let refused = target.refused.iter().map(|refused| refused_row(target, refused));
    let mut rows: Vec<_> = served.chain(refused).collect();
    if let (true, Some(standing)) = (rows.is_empty(), &target.pair) {
        let mut row = [NOTHING; 9].map(str::to_owned);
        row[0].clone_from(&target.name);
        row[1] = match HealthLevel::of(&pair) {
            HealthLevel::Fine => standing.role.clone(),
            level => level.to_string(),
        };
        rows.push(row);
    }
    rows
}

fn row(target: &TargetStatus, unit: &UnitStatus, pair: &[HealthProblem]) -> [String; 9] {
    let cache = unit.cache();
    let nothing = || NOTHING.to_owned();
    let of_cache =
        |shown: fn(&CacheFigures) -> Option<String>| cache.and_then(shown).unwrap_or_else(nothing);
    [
        format!("{}/{}", target.name, unit.lun),
        HealthLevel::of(unit.problems().iter().chain(pair)).to_string(),
        of_cache(|cache| Some(about(cache.dirty.dirty_bytes))),
        of_cache(|cache| (cache.dirty.dirty_bytes > 0).then(|| age(cache.dirty.oldest_dirty_ms))),
        of_cache(|cache| Some(format!("{} %", cache.log.log_fill_percent))),
        of_cache(|cache| cache.log.log_lasts_s.map(duration)),
        link(unit).unwrap_or(NOTHING).to_owned(),
        claim(unit).unwrap_or_else(nothing),
        of_cache(|cache| last_error(cache).map(one_line)),
    ]
}

fn refused_row(target: &TargetStatus, refused: &RefusedStatus) -> [String; 9] {
    let mut row = [NOTHING; 9].map(str::to_owned);
    row[0] = format!("{}/{}", target.name, refused.lun);
    row[1] = "not served".to_owned();
    row
}

/// Returns the state of the link; `silent` means that there is a session but no call is answered.
fn link(unit: &UnitStatus) -> Option<&'static str> {
    let is_away = unit.cache().is_some_and(|cache| cache.lower.lower_away_since.is_some());
    Some(match unit.remote()?.session.link {
        FarLinkState::Down => "down",
        FarLinkState::Up if is_away => "silent",
        FarLinkState::Up => "up",
    })
}

/// Returns, at a gateway, the state of the claim on its far volume; at a node, the gateway that has claimed the unit.
fn claim(unit: &UnitStatus) -> Option<String> {
    if let Some(cache) = unit.cache().filter(|_| unit.remote().is_some()) {
        return match &cache.claim {
            CacheClaim::Fenced(_) => Some("fenced".to_owned()),
            claim => Some(claim.to_string()),
        };
    }
    let claim = unit.claim.as_ref().filter(|claim| claim.held && !claim.dropped)?;
    let away = if claim.present { "" } else { " (away)" };
    Some(format!("{}{away}", claim.owner))
}

/// Returns the most urgent of the errors that the cache reports at present.
fn last_error(cache: &CacheFigures) -> Option<&str> {
    let tier = cache.tier.as_ref().and_then(|tier| tier.tier_error.as_ref());
    let share = cache.sharing.as_ref().and_then(|sharing| sharing.share_lost.as_ref());
    let log = cache.log.log_error.as_ref().or(cache.log.nvram_error.as_ref());
    log.or(share).or(cache.lower.lower_error.as_ref()).or(tier).map(String::as_str)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn age(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { duration(ms / 1000) }
}

/// Returns totals since the start of the process, including closed sessions.
fn totals(status: &ServingStatus) -> String {
    let Some(counters) = status.counters.serving() else { return String::new() };
    let traffic = &counters.traffic;
    format!(
        "\n{} open; since the start: {}, {}, {} written, {} read\n",
        counted(status.sessions.len() as u64, "session"),
        counted(counters.logins.opened_sessions, "session"),
        counted(traffic.commands, "command"),
        about(traffic.data_out_bytes),
        about(traffic.data_in_bytes),
    )
}

fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use control::{
        LayerFigures, LayerStatus, ProcessCounters, RemoteFigures, ServingCounters, ServingPhase,
        SessionStatus,
    };

    use super::*;

    fn status() -> ServingStatus {
        let mut cache = CacheFigures { claim: CacheClaim::Held, ..CacheFigures::default() };
        cache.dirty.dirty_bytes = 3 << 19;
        cache.dirty.oldest_dirty_ms = 2100;
        cache.log.log_fill_percent = 85;
        cache.log.log_lasts_s = Some(190);
        cache.lower.lower_error = Some("no\nanswer".to_owned());
        let mut remote = RemoteFigures::default();
        remote.session.link = FarLinkState::Up;
        let layer = |layer: &str, figures| LayerStatus {
            layer: layer.to_owned(),
            on: String::new(),
            figures,
        };
        let unit = UnitStatus {
            lun: 3,
            layers: vec![
                layer("remote", LayerFigures::Remote(Box::new(remote))),
                layer("cache", LayerFigures::Cache(Box::new(cache))),
            ],
            ..UnitStatus::default()
        };
        let refused = RefusedStatus {
            lun: 4,
            message: "its volume is missing".to_owned(),
            remedy: Some("mount its disk".to_owned()),
        };
        let target = TargetStatus {
            name: "iqn.x".to_owned(),
            units: vec![unit],
            refused: vec![refused],
            ..TargetStatus::default()
        };
        let mut counters = ServingCounters::default();
        counters.logins.opened_sessions = 5;
        counters.traffic.commands = 1234;
        counters.traffic.data_out_bytes = 1 << 30;
        ServingStatus {
            version: "0".to_owned(),
            pid: 1,
            state: ServingPhase::Serving,
            uptime_seconds: 61,
            targets: vec![target],
            sessions: vec![SessionStatus::default()],
            counters: ProcessCounters::Serving(Box::new(counters)),
            ..ServingStatus::default()
        }
    }

    /// Returns the words of a line separated by single spaces, so that a test does not depend on column widths.
    fn words(line: &str) -> String {
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_volume_and_each_problem_has_a_line_of_its_own() {
        let text = for_people(&status());
        let lines: Vec<_> = text.lines().map(words).collect();
        let expected = [
            "forebay 0 (process 1) is serving for 1 min 1 s",
            "",
            "volume health dirty oldest log lasts link claim last error",
            "iqn.x/3 warning 1.5 MiB 2 s 85 % 3 min 10 s up held no answer",
            "iqn.x/4 not served - - - - - - -",
            "",
            "critical: iqn.x/4: it is not served: its volume is missing",
            "remedy: mount its disk",
            "warning: iqn.x/3: the log fills up: 85 %",
            "",
            "1 session open; since the start: 5 sessions, 1234 commands, 1.0 GiB written, 0 B read",
        ];
        assert_eq!(lines, expected, "{text}");
        assert!(text.lines().all(|line| line.trim_end() == line), "{text:?}");
    }
}
