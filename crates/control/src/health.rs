//! Health of a process and its volumes, for `forebay status`, monitors and other readers of the status: the problems
//! and their urgency.

use std::fmt;

use crate::{
    cache_figures::{CacheClaim, CacheFigures, DestageFigures, HALF_IN_SYNC},
    claim::ClaimStatus,
    layer::{FileFigures, LayerFigures, LayerStatus},
    remote_figures::{FarLinkState, RemoteFigures},
    serving::{PairStatus, RefusedStatus, ServingPhase, ServingStatus, TargetStatus, UnitStatus},
};

/// If a log is filled to this percentage, the status of its gateway has a warning. By default destage begins when half
/// of the log is filled, so a fuller log shows that the far volume accepts less than the hosts write.
pub const LOG_FILLING_PERCENT: u64 = 80;
/// If a log is filled to this percentage, hosts will soon have to wait, and the status reports that.
pub const LOG_NEARLY_FULL_PERCENT: u64 = 95;
/// If destage is stopped and the log will be full in less than this number of seconds, the problem is critical. An
/// operator needs about an hour to bring a link or a node back.
const LOG_LASTS_TOO_SHORT: u64 = 3600;
/// If dirty data is older than this number of milliseconds, and older than twice `dirty_age`, the status of its gateway
/// has a warning.
const DIRTY_TOO_LONG_MS: u64 = 60_000;
/// A file system that has refused a call counts as full if it has fewer free bytes than this.
const FILE_SYSTEM_FULL: u64 = 1 << 20;

/// Urgency of a problem, in ascending order.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum HealthLevel {
    #[default]
    Fine,
    /// Hosts are served, but an operator should act: a reserve is used up or lost.
    Warning,
    /// Hosts get errors or must wait, or soon will, or data is lost.
    Critical,
}

impl HealthLevel {
    /// Returns the level of the most urgent problem; [`HealthLevel::Fine`] without problems.
    pub fn of<'a>(problems: impl IntoIterator<Item = &'a HealthProblem>) -> Self {
        problems.into_iter().map(|problem| problem.level).max().unwrap_or_default()
    }
}

impl fmt::Display for HealthLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fine => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
        })
    }
}

/// A problem of a process, a target or a unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HealthProblem {
    pub level: HealthLevel,
    /// Description of the problem in one line.
    pub message: String,
    /// Describes how to correct the problem, if that is known.
    pub remedy: Option<String>,
}

impl HealthProblem {
    fn warning(message: impl fmt::Display) -> Self {
        Self { level: HealthLevel::Warning, message: one_line(message), remedy: None }
    }

    fn critical(message: impl fmt::Display) -> Self {
        Self { level: HealthLevel::Critical, message: one_line(message), remedy: None }
    }
}

/// Joins the lines of a message, because error messages of other programs may have several.
fn one_line(message: impl fmt::Display) -> String {
    message.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

impl ServingStatus {
    /// Returns all problems, the most urgent ones first, each with the name of the volume (`TARGET/LUN`), target or
    /// process that has it.
    pub fn problems(&self) -> Vec<(String, HealthProblem)> {
        let own = self.own_problems().into_iter().map(|problem| (self.process_name(), problem));
        let of_targets = self.targets.iter().flat_map(|target| {
            let pair = target.pair.iter().flat_map(PairStatus::problems);
            let refused = target
                .refused
                .iter()
                .map(|refused| (format!("{}/{}", target.name, refused.lun), refused.problem()));
            let units = target.units.iter().flat_map(|unit| {
                let name = format!("{}/{}", target.name, unit.lun);
                unit.problems().into_iter().map(move |problem| (name.clone(), problem))
            });
            pair.map(|problem| (target.name.clone(), problem)).chain(refused).chain(units)
        });
        let mut all: Vec<_> = own.chain(of_targets).collect();
        all.sort_by_key(|(_, problem)| std::cmp::Reverse(problem.level));
        all
    }

    fn process_name(&self) -> String {
        format!("process {}", self.pid)
    }

    fn own_problems(&self) -> Vec<HealthProblem> {
        let phase = match self.state {
            ServingPhase::Starting => Some(HealthProblem::warning("it is starting")),
            ServingPhase::Serving => None,
            ServingPhase::Stopping => Some(HealthProblem::warning("it is stopping")),
        };
        phase.into_iter().chain(self.naming_troubles.iter().map(HealthProblem::warning)).collect()
    }
}

impl TargetStatus {
    /// Returns the problems of the pair that serves the target, but not those of its units.
    pub fn pair_problems(&self) -> Vec<HealthProblem> {
        self.pair.iter().flat_map(PairStatus::problems).collect()
    }
}

impl RefusedStatus {
    pub fn problem(&self) -> HealthProblem {
        let message = format!("it is not served: {}", self.message);
        HealthProblem { remedy: self.remedy.clone(), ..HealthProblem::critical(message) }
    }
}

impl PairStatus {
    fn problems(&self) -> Vec<HealthProblem> {
        let reason = self.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let mut problems = Vec::new();
        match (self.role.as_str(), self.partner_is_there) {
            ("alone", _) => problems.push(HealthProblem::warning(format_args!(
                "it serves without its partner, which lacks data{reason}"
            ))),
            ("standby", false) => problems.push(HealthProblem::critical(format_args!(
                "it does not serve, and its partner does not answer{reason}"
            ))),
            (_, false) => problems
                .push(HealthProblem::warning(format_args!("its partner does not answer{reason}"))),
            (_, true) => {}
        }
        if self.nvram.as_ref().is_some_and(|nvram| !nvram.is_used) {
            problems.push(HealthProblem::warning(
                "its NVRAM or its leg of the log has failed: every write waits for the log disks",
            ));
        }
        problems
    }
}

impl UnitStatus {
    /// Returns the problems of this unit, most urgent first.
    pub fn problems(&self) -> Vec<HealthProblem> {
        let cache = self.cache();
        let mut problems: Vec<_> = cache.map(cache_problems).unwrap_or_default();
        for LayerStatus { layer, on, figures } in &self.layers {
            match figures {
                LayerFigures::Remote(remote) => {
                    problems.extend(link_problem(remote, on, cache));
                    problems.extend(cache.and_then(age_problem));
                }
                LayerFigures::File(file) => problems.extend(space_problem(file, on)),
                LayerFigures::Untyped(figures) if !figures.is_empty() => {
                    problems.push(HealthProblem::warning(format_args!(
                        "the figures of its layer `{layer}` come from another version of forebay"
                    )));
                }
                LayerFigures::Cache(_) | LayerFigures::Observe(_) | LayerFigures::Untyped(_) => {}
            }
        }
        problems.extend(self.claim.as_ref().and_then(ClaimStatus::problem));
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.level));
        problems
    }
}

impl ClaimStatus {
    /// Returns the problem of a gateway that is away while it holds the newest data of a shared unit.
    fn problem(&self) -> Option<HealthProblem> {
        let is_awaited = self.share.as_ref().is_some_and(|share| share.awaited);
        let has_data = self.held && self.dirty && !self.present && !self.dropped;
        (is_awaited || has_data).then(|| {
            HealthProblem::warning(format_args!(
                "its newest data is with the gateway {}, which is away",
                self.owner
            ))
        })
    }
}

/// Returns the problem of a missing session: an error for hosts, unless a cache answers them.
fn link_problem(
    remote: &RemoteFigures,
    on: &str,
    cache: Option<&CacheFigures>,
) -> Option<HealthProblem> {
    let is_reported = cache.is_some_and(|cache| cache.lower.lower_away_since.is_some());
    if remote.session.link == FarLinkState::Up || is_reported {
        return None;
    }
    let message = format!("there is no session with the far target {on}");
    Some(match cache {
        Some(cache) if !cache.writes_through() => HealthProblem::warning(message),
        _ => HealthProblem::critical(message),
    })
}

/// Returns the problem that a gateway destages too late. A node has no such problem: with `report = "at-flush"`, its
/// log keeps data until the host flushes. If destage is stopped, this function reports no problem, because the reason
/// of the stop is a problem of its own. If the rate in the settings is 0, the delay is intended.
fn age_problem(cache: &CacheFigures) -> Option<HealthProblem> {
    let DestageFigures { dirty_age_ms, destage_rate_limit_bytes, destage_rate_by, .. } =
        &cache.destage;
    let is_planned = *destage_rate_limit_bytes == Some(0) && destage_rate_by == "settings";
    let limit = DIRTY_TOO_LONG_MS.max(dirty_age_ms.saturating_mul(2));
    let age = cache.dirty.oldest_dirty_ms;
    (age > limit && !cache.is_destage_stopped() && !is_planned).then(|| {
        HealthProblem::warning(format_args!(
            "destage is late: its oldest dirty data has waited {} s, more than {} s",
            age / 1000,
            limit / 1000
        ))
    })
}

fn space_problem(file: &FileFigures, on: &str) -> Option<HealthProblem> {
    let free = file.free_bytes.filter(|free| *free < FILE_SYSTEM_FULL)?;
    (file.refused_no_space > 0).then(|| {
        HealthProblem::critical(format_args!(
            "the file system of {on} has {free} bytes left, and has refused {} calls",
            file.refused_no_space
        ))
    })
}

impl CacheFigures {
    /// Returns true if the far volume takes no data now: it is away or refuses destage, or destage is paused.
    fn is_destage_stopped(&self) -> bool {
        self.lower.lower_away_since.is_some()
            || self.lower.lower_refuses_since.is_some()
            || self.destage.paused_since.is_some()
    }

    /// Returns true for write-through, where each write waits for the far volume. To find out, compares the text of the
    /// figure `order`.
    fn writes_through(&self) -> bool {
        ["every write that was answered", "none (the log holds older writes)"]
            .contains(&self.epochs.order.as_str())
    }
}

fn cache_problems(cache: &CacheFigures) -> Vec<HealthProblem> {
    let CacheFigures { log, lower, .. } = cache;
    let critical = |what: &str, error: &Option<String>| {
        Some(HealthProblem::critical(format_args!("{what}{}", error.as_ref()?)))
    };
    let warning = |what: &str, error: &Option<String>| {
        Some(HealthProblem::warning(format_args!("{what}{}", error.as_ref()?)))
    };
    let refusal = lower.lower_refuses_since.as_ref().map(|since| {
        let error = lower.lower_error.as_deref().unwrap_or("no reason is known");
        HealthProblem::critical(format_args!(
            "the far volume has refused destage since {since}: {error}"
        ))
    });
    let away = lower.lower_away_since.as_ref().map(|since| {
        let message = format!("the far volume has not answered since {since}");
        match cache.writes_through() {
            true => HealthProblem::critical(message),
            false => HealthProblem::warning(message),
        }
    });
    let rot = (log.rotten_slots > 0).then(|| {
        HealthProblem::critical("dirty data in the log is damaged and lost (see `rotten_slots`)")
    });
    let halves = cache.mirror.iter().flat_map(|mirror| mirror.log_halves.iter().enumerate());
    let halves = halves.filter(|(_, state)| *state != HALF_IN_SYNC).map(|(index, state)| {
        HealthProblem::warning(format_args!("leg {} of the log is {state}", index + 1))
    });
    let tier_error = cache.tier.as_ref().map(|tier| &tier.tier_error);
    let share_lost = cache.sharing.as_ref().map(|sharing| &sharing.share_lost);
    claim_problems(cache)
        .into_iter()
        .chain(rot)
        .chain(critical("the log disk fails: ", &log.log_error))
        .chain(refusal)
        .chain(fill_problem(cache))
        .chain(share_lost.and_then(|error| critical("it has lost its coherence tokens: ", error)))
        .chain(away)
        .chain(warning(
            "the NVRAM has failed, and writes wait for the log disk: ",
            &log.nvram_error,
        ))
        .chain(halves)
        .chain(warning("destage is paused since ", &cache.destage.paused_since))
        .chain(tier_error.and_then(|error| warning("the read tier is switched off: ", error)))
        .collect()
}

fn claim_problems(cache: &CacheFigures) -> Vec<HealthProblem> {
    let members = cache.members.iter().flat_map(|members| &members.volumes);
    let of_members = members.filter_map(|(volume, claim)| match claim {
        CacheClaim::Fenced(reason) => Some(HealthProblem::critical(format_args!(
            "another gateway has its far volume {volume}: {reason}"
        ))),
        _ => None,
    });
    match &cache.claim {
        CacheClaim::Fenced(reason) => vec![HealthProblem::critical(format_args!(
            "another gateway has its far volume: {reason}"
        ))],
        _ => of_members.collect(),
    }
}

fn fill_problem(cache: &CacheFigures) -> Option<HealthProblem> {
    let percent = cache.log.log_fill_percent;
    let ends = cache.log.log_lasts_s.filter(|lasts| *lasts < LOG_LASTS_TOO_SHORT);
    match percent {
        100.. => Some(HealthProblem::critical("the log is full: writes wait for room")),
        LOG_NEARLY_FULL_PERCENT.. => {
            Some(HealthProblem::critical(format_args!("the log is nearly full: {percent} %")))
        }
        _ if ends.is_some() && cache.is_destage_stopped() => {
            Some(HealthProblem::critical(format_args!(
                "the log is full in {} s, since nothing is destaged: {percent} % are used",
                ends.unwrap_or_default()
            )))
        }
        LOG_FILLING_PERCENT.. => {
            Some(HealthProblem::warning(format_args!("the log fills up: {percent} %")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cache_figures::{LogMirrorFigures, ReadTierFigures},
        claim::ShareStatus,
        serving::PairNvram,
    };

    fn unit(layers: Vec<LayerFigures>) -> UnitStatus {
        let layers = layers.into_iter().map(|figures| LayerStatus {
            on: "there".to_owned(),
            figures,
            ..LayerStatus::default()
        });
        UnitStatus { layers: layers.collect(), ..UnitStatus::default() }
    }

    fn remote(link: FarLinkState) -> LayerFigures {
        let mut remote = RemoteFigures::default();
        remote.session.link = link;
        LayerFigures::Remote(Box::new(remote))
    }

    fn cached(change: impl FnOnce(&mut CacheFigures)) -> UnitStatus {
        let mut cache = CacheFigures::default();
        change(&mut cache);
        unit(vec![remote(FarLinkState::Up), LayerFigures::Cache(Box::new(cache))])
    }

    #[track_caller]
    fn check(unit: &UnitStatus, expected: HealthLevel, words: &str) {
        let problems = unit.problems();
        assert_eq!(HealthLevel::of(&problems), expected, "{problems:?}");
        let is_found = problems.first().is_none_or(|problem| problem.message.contains(words));
        assert!(is_found, "{words} in {problems:?}");
    }

    #[test]
    fn a_unit_without_problems_is_fine() {
        check(&cached(|_| ()), HealthLevel::Fine, "");
        check(&unit(vec![LayerFigures::default()]), HealthLevel::Fine, "");
    }

    #[test]
    fn a_log_that_fills_is_a_warning_and_then_critical() {
        let filled = |percent| cached(|cache| cache.log.log_fill_percent = percent);
        check(&filled(79), HealthLevel::Fine, "");
        check(&filled(80), HealthLevel::Warning, "80 %");
        check(&filled(95), HealthLevel::Critical, "95 %");
        check(&filled(100), HealthLevel::Critical, "writes wait");
    }

    #[test]
    fn a_log_that_lasts_less_than_an_hour_is_critical_while_nothing_is_destaged() {
        let lasting = |lasts, change: fn(&mut CacheFigures)| {
            cached(|cache| {
                cache.log.log_lasts_s = lasts;
                change(cache);
            })
        };
        let away = |cache: &mut CacheFigures| cache.lower.lower_away_since = Some("9:00".into());
        let paused = |cache: &mut CacheFigures| cache.destage.paused_since = Some("9:00".into());
        check(&lasting(Some(60), |_| ()), HealthLevel::Fine, "");
        check(&lasting(Some(3600), away), HealthLevel::Warning, "9:00");
        check(&lasting(None, away), HealthLevel::Warning, "9:00");
        check(&lasting(Some(3599), away), HealthLevel::Critical, "full in 3599 s");
        check(&lasting(Some(3599), paused), HealthLevel::Critical, "full in 3599 s");
    }

    #[test]
    fn dirty_data_that_is_destaged_too_late_is_a_warning_at_a_gateway() {
        let old = |oldest_dirty_ms, dirty_age_ms| {
            cached(|cache| {
                cache.dirty.oldest_dirty_ms = oldest_dirty_ms;
                cache.destage.dirty_age_ms = dirty_age_ms;
            })
        };
        check(&old(60_000, 5_000), HealthLevel::Fine, "");
        check(&old(61_000, 5_000), HealthLevel::Warning, "waited 61 s");
        check(&old(61_000, 60_000), HealthLevel::Fine, "");
        check(&old(121_000, 60_000), HealthLevel::Warning, "more than 120 s");
        let mut node = old(61_000, 5_000);
        node.layers.remove(0);
        check(&node, HealthLevel::Fine, "");
        let mut cache = CacheFigures::default();
        (cache.dirty.oldest_dirty_ms, cache.destage.paused_since) = (61_000, Some("9:00".into()));
        let layers = vec![remote(FarLinkState::Up), LayerFigures::Cache(Box::new(cache))];
        assert_eq!(unit(layers).problems().len(), 1);
    }

    #[test]
    fn the_level_of_an_error_depends_on_what_hosts_notice() {
        let text = || Some("words".to_owned());
        let warning = HealthLevel::Warning;
        let critical = HealthLevel::Critical;
        check(&cached(|cache| cache.log.log_error = text()), critical, "words");
        check(&cached(|cache| cache.log.nvram_error = text()), warning, "words");
        check(&cached(|cache| cache.log.rotten_slots = 1), critical, "rotten_slots");
        check(&cached(|cache| cache.lower.lower_away_since = text()), warning, "words");
        check(&cached(|cache| cache.lower.lower_refuses_since = text()), critical, "words");
        check(&cached(|cache| cache.destage.paused_since = text()), warning, "words");
        let fenced = CacheClaim::Fenced("words".to_owned());
        check(&cached(|cache| cache.claim = fenced), critical, "words");
        let halves = vec![HALF_IN_SYNC.to_owned(), "lost: words".to_owned()];
        let mirror = Some(LogMirrorFigures { log_halves: halves, log_zeroed_blocks: 0 });
        check(&cached(|cache| cache.mirror = mirror), warning, "leg 2");
        let tier = Some(ReadTierFigures { tier_error: text(), ..ReadTierFigures::default() });
        check(&cached(|cache| cache.tier = tier), warning, "words");
    }

    #[test]
    fn a_lost_session_is_critical_where_no_log_takes_the_writes() {
        let down = || remote(FarLinkState::Down);
        let cache = |order: &str| {
            let mut cache = CacheFigures::default();
            order.clone_into(&mut cache.epochs.order);
            LayerFigures::Cache(Box::new(cache))
        };
        check(&unit(vec![down()]), HealthLevel::Critical, "no session");
        check(&unit(vec![down(), cache("epochs, atomic")]), HealthLevel::Warning, "no session");
        let through = cache("every write that was answered");
        check(&unit(vec![down(), through]), HealthLevel::Critical, "no session");
    }

    #[test]
    fn a_file_system_is_full_when_it_has_refused_calls_and_has_no_room() {
        let file = |refused_no_space, free| {
            let free_bytes = Some(free);
            let file = FileFigures { refused_no_space, free_bytes, ..FileFigures::default() };
            unit(vec![LayerFigures::File(file)])
        };
        check(&file(0, 0), HealthLevel::Fine, "");
        check(&file(9, 1 << 30), HealthLevel::Fine, "");
        check(&file(9, 4096), HealthLevel::Critical, "4096 bytes");
    }

    #[test]
    fn a_disconnected_gateway_with_the_newest_data_is_a_warning() {
        let claimed = |dirty, present| {
            let claim = ClaimStatus { held: true, dirty, present, ..ClaimStatus::default() };
            UnitStatus { claim: Some(claim), ..UnitStatus::default() }
        };
        check(&claimed(true, true), HealthLevel::Fine, "");
        check(&claimed(false, false), HealthLevel::Fine, "");
        check(&claimed(true, false), HealthLevel::Warning, "away");
        let mut awaited = claimed(false, false);
        let share = Some(ShareStatus { awaited: true, ..ShareStatus::default() });
        awaited.claim.as_mut().expect("a claim").share = share;
        check(&awaited, HealthLevel::Warning, "away");
    }

    #[test]
    fn a_pair_without_its_partner_is_a_problem() {
        let pair = |role: &str, partner_is_there, is_used| PairStatus {
            role: role.to_owned(),
            partner_is_there,
            halves: Vec::new(),
            nvram: Some(PairNvram { pending_bytes: 0, is_used }),
            reason: None,
        };
        let level_of = |pair: PairStatus| HealthLevel::of(&pair.problems());
        assert_eq!(level_of(pair("active", true, true)), HealthLevel::Fine);
        assert_eq!(level_of(pair("standby", true, true)), HealthLevel::Fine);
        assert_eq!(level_of(pair("alone", false, true)), HealthLevel::Warning);
        assert_eq!(level_of(pair("active", true, false)), HealthLevel::Warning);
        assert_eq!(level_of(pair("standby", false, true)), HealthLevel::Critical);
    }

    #[test]
    fn problems_name_the_volume_the_target_or_the_process() {
        let refused = RefusedStatus {
            lun: 4,
            message: "its volume\nis gone".into(),
            remedy: Some("bring it".into()),
        };
        let target = TargetStatus {
            name: "iqn.x".to_owned(),
            refused: vec![refused],
            units: vec![UnitStatus { lun: 3, ..cached(|cache| cache.log.log_fill_percent = 96) }],
            ..TargetStatus::default()
        };
        let status = ServingStatus { pid: 7, targets: vec![target], ..ServingStatus::default() };
        let problems = status.problems();
        let names: Vec<_> = problems.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["iqn.x/4", "iqn.x/3", "process 7"]);
        assert!(problems[0].1.message.ends_with("its volume is gone"), "{problems:?}");
        assert_eq!(problems[0].1.remedy.as_deref(), Some("bring it"));
    }
}
