//! Events of a cache: a log that fills (at 80 %, at 95 %, when it is full, and when it has room again), a far
//! volume that does not answer, and one that refuses what destage sends. Each condition gets one event when it
//! begins and one when it ends.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use cache::{Cache, CacheStatistics};
use config::quantity::about;
use control::{LOG_FILLING_PERCENT, LOG_NEARLY_FULL_PERCENT};
use initiator::RemoteVolume;
use tokio::time::Instant;

/// A fill level of the log that events report.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum Level {
    #[default]
    Room,
    Filling,
    NearlyFull,
    Full,
}

impl Level {
    /// Returns the level for a log that is `percent` full. `refuses` is true if hosts got BUSY since the last
    /// check.
    fn of(percent: u64, refuses: bool) -> Self {
        match percent {
            100.. => Self::Full,
            _ if refuses => Self::Full,
            LOG_NEARLY_FULL_PERCENT.. => Self::NearlyFull,
            LOG_FILLING_PERCENT.. => Self::Filling,
            _ => Self::Room,
        }
    }
}

/// The fill level that the last event has reported. The event of a level is not repeated before the log has been below
/// [`ROOM_AGAIN`] for [`ROOM_FOR`]. Each destage round frees an eighth of a full log, and the next writes fill it again
/// within seconds. A large write may also find too little room in a small log that is half empty.
#[derive(Default)]
struct ReportedLogFill {
    level: Level,
    has_room_since: Option<Instant>,
}

impl ReportedLogFill {
    /// Returns the fill level of the log if an event has to report it now.
    fn look(&mut self, percent: u64, refuses: bool, now: Instant) -> Option<Level> {
        if percent >= ROOM_AGAIN || refuses {
            self.has_room_since = None;
        } else {
            self.has_room_since.get_or_insert(now);
        }
        let next = match self.has_room_since {
            Some(since) if now - since >= ROOM_FOR => Level::Room,
            _ => self.level.max(Level::of(percent, refuses)),
        };
        (next != std::mem::replace(&mut self.level, next)).then_some(next)
    }
}

/// How long a session with a far volume has been lost or has not answered, and the reason.
type LinkTrouble = Option<(Duration, Arc<str>)>;

#[derive(Default)]
struct FarVolumeConditions {
    is_away: bool,
    refuses: bool,
    /// The time at which calls were last seen to fail, and the number of complete destage rounds at that time.
    failed: Option<(Instant, u64)>,
}

/// The beginning or the end of a time in which a far volume does not answer, or refuses what destage sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FarVolumeTransition {
    Away,
    Answers,
    Refuses,
    Takes,
}

impl FarVolumeConditions {
    fn look(
        &mut self,
        counted: &CacheStatistics,
        link: &LinkTrouble,
        now: Instant,
    ) -> Vec<FarVolumeTransition> {
        let mut changes = Vec::new();
        let refuses = counted.lower.refuses_ms.is_some();
        if refuses != std::mem::replace(&mut self.refuses, refuses) {
            changes.push(if refuses {
                FarVolumeTransition::Refuses
            } else {
                FarVolumeTransition::Takes
            });
        }
        if counted.lower.away_ms.is_some() && !counted.lower.is_silent {
            self.failed = Some((now, counted.destage.rounds));
        }
        if !self.is_away && is_away(counted, link) {
            self.is_away = true;
            changes.push(FarVolumeTransition::Away);
        } else if self.is_away && self.answers(counted, link, now) {
            self.is_away = false;
            changes.push(FarVolumeTransition::Answers);
        }
        changes
    }

    /// Returns true if the far volume answers again. A call that succeeds does not prove this: it may succeed between
    /// two destage rounds that fail, and in a common cache it may have been sent to another far volume.
    fn answers(&self, counted: &CacheStatistics, link: &LinkTrouble, now: Instant) -> bool {
        let is_over = |(at, rounds)| counted.destage.rounds > rounds || now - at >= QUIET;
        link.is_none() && counted.lower.away_ms.is_none() && self.failed.is_none_or(is_over)
    }
}

fn is_away(counted: &CacheStatistics, link: &LinkTrouble) -> bool {
    // Allow more time if the far volume answers pings but not calls: it may be busy with a long flush.
    let limit = if counted.lower.is_silent { LONGEST_ANSWER } else { AWAY_AFTER };
    let failing = counted.lower.away_ms.map(Duration::from_millis);
    failing.is_some_and(|time| time >= limit)
        || link.as_ref().is_some_and(|(time, _)| *time >= AWAY_AFTER)
}

/// Checks the log of `cache` and its far volumes each second for as long as the cache lives. `links` are the sessions
/// with the far volumes.
pub async fn watch(
    cache: Weak<Cache>,
    volume: String,
    log: PathBuf,
    links: Vec<Weak<RemoteVolume>>,
) {
    let (mut fill, mut far) = (ReportedLogFill::default(), FarVolumeConditions::default());
    let mut refused = 0;
    while let Some(cache) = cache.upgrade() {
        let counted = cache.statistics();
        drop(cache);
        let trouble = links.iter().filter_map(|link| link.upgrade()?.session().away());
        let link = trouble.max_by_key(|(time, _)| *time);
        let refuses = counted.traffic.refused_busy
            > std::mem::replace(&mut refused, counted.traffic.refused_busy)
            && counted.log.fill_percent >= NEARLY;
        let now = Instant::now();
        let told = CacheEventFigures { volume: &volume, log: &log, counted: &counted, link: &link };
        if let Some(level) = fill.look(counted.log.fill_percent, refuses, now) {
            told.level(level);
        }
        for change in far.look(&counted, &link, now) {
            told.change(change);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct CacheEventFigures<'a> {
    volume: &'a str,
    log: &'a Path,
    counted: &'a CacheStatistics,
    link: &'a LinkTrouble,
}

impl CacheEventFigures<'_> {
    fn level(&self, level: Level) {
        let Self { volume, counted, .. } = *self;
        let log = self.log.display();
        let percent = counted.log.fill_percent;
        let dirty = about(counted.destage.dirty_bytes);
        let (lasts, far_side, remedy) = (self.lasts(), self.far_volume_state(), self.remedy());
        match level {
            Level::Room => tracing::info!(
                volume, %log, percent, dirty, far_side, "the log has room again"
            ),
            Level::Filling | Level::NearlyFull => tracing::warn!(
                volume, %log, percent, dirty, lasts, far_side, remedy, "the log fills up"
            ),
            Level::Full if self.bypasses() => tracing::error!(
                volume, %log, dirty, far_side, remedy,
                "the log is full: writes bypass it and are as slow as the far volume"
            ),
            Level::Full => tracing::error!(
                volume, %log, dirty, far_side, remedy,
                "the log is full: writes wait for room, and get BUSY after `busy_after`"
            ),
        }
    }

    fn change(&self, change: FarVolumeTransition) {
        let Self { volume, counted, .. } = *self;
        let log = self.log.display();
        let dirty = about(counted.destage.dirty_bytes);
        let (lasts, far_side) = (self.lasts(), self.far_volume_state());
        match change {
            FarVolumeTransition::Away => tracing::warn!(
                volume, %log, dirty, lasts, far_side,
                remedy = "nothing has to be done unless it lasts: `forebay status` shows since when \
                 and why; then check the node and the link",
                "the far volume does not answer: dirty data stays in the log until it answers"
            ),
            FarVolumeTransition::Answers => {
                tracing::info!(volume, %log, dirty, "the far volume answers again");
            }
            FarVolumeTransition::Refuses => tracing::warn!(
                volume, %log, dirty, lasts, far_side,
                remedy = "remove the cause there, which `forebay status` shows here; destage then \
                 continues by itself",
                "the far volume refuses what destage sends: dirty data stays in the log"
            ),
            FarVolumeTransition::Takes => {
                tracing::info!(volume, %log, dirty, "the far volume takes destage again");
            }
        }
    }

    /// Returns the time until the log is full, in words.
    fn lasts(&self) -> String {
        match self.counted.log.lasts_s {
            _ if self.counted.log.fill_percent >= 100 => "it is full".to_owned(),
            None => "it does not fill at present".to_owned(),
            Some(seconds @ 0..120) => format!("{seconds} s"),
            Some(seconds @ 120..7200) => format!("{} min", seconds / 60),
            Some(seconds) => format!("{} h", seconds / 3600),
        }
    }

    fn far_volume_state(&self) -> String {
        let counted = self.counted;
        let error = counted.lower.error.as_deref().unwrap_or("no answer");
        match (self.link, counted.lower.away_ms, counted.lower.refuses_ms) {
            (Some((time, why)), ..) => format!("no connection for {} s: {why}", time.as_secs()),
            (_, Some(ms), _) => format!("no answer for {} s: {error}", ms / 1000),
            (.., Some(ms)) => format!("destage refused for {} s: {error}", ms / 1000),
            _ if counted.destage.paused_ms.is_some() => "destage is paused".to_owned(),
            _ if counted.destage.rate_limit == Some(0) => "destage may send nothing now".to_owned(),
            _ => "it answers".to_owned(),
        }
    }

    /// Returns a remedy for the operator: how to get free space in the log in its present state.
    fn remedy(&self) -> String {
        let counted = self.counted;
        let first = if self.link.is_some() || counted.lower.away_ms.is_some() {
            "make the far volume available again"
        } else if counted.lower.refuses_ms.is_some() {
            "remove the cause of the far volume's error"
        } else if counted.destage.paused_ms.is_some() {
            "resume destage with `forebay gateway resume`"
        } else if counted.destage.rate_limit.is_some() {
            "give destage a higher rate with `forebay gateway rate`"
        } else {
            "let the hosts write less, because destage is slower than their writes"
        };
        format!("{first}, or make the log larger with `forebay gateway log-resize`")
    }

    /// Returns true if a write that finds no room in the log is sent to the far volume directly. This is so with `order
    /// = "relaxed"`, while the far volume answers.
    fn bypasses(&self) -> bool {
        self.counted.order.order == cache::BYPASS_ALLOWED
            && self.link.is_none()
            && self.counted.lower.away_ms.is_none()
    }
}

/// Fill level in per cent below which a log that was filling has room again.
const ROOM_AGAIN: u64 = 70;
/// Time for which the log must have been below [`ROOM_AGAIN`]: twice the longest pause of destage between two
/// attempts.
const ROOM_FOR: Duration = Duration::from_secs(10);
/// Fill level in per cent from which a refusal with BUSY is attributed to a full log.
const NEARLY: u64 = 90;
/// A far volume that fails every call, or does not answer pings, for this long gets an event. Hosts do not
/// notice so short a time, and one lost call does not take so long.
const AWAY_AFTER: Duration = Duration::from_secs(2);
/// A far volume that answers pings may take this long for one call: half a minute is the time after which hosts
/// abort a command. A flush of several seconds is usual on a busy disk.
const LONGEST_ANSWER: Duration = Duration::from_secs(30);
/// When a call to the far volume has failed, the far volume counts as answering again after a complete destage round,
/// or after this time without a failed call. Destage pauses for at most 5 s between two failing rounds, so this time
/// has room for several rounds.
const QUIET: Duration = Duration::from_secs(30);
/// The interval of the checks: a log of 64 GiB at 1 GB/s goes from 80 % to full in 13 s.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use cache::{DestageStatistics, LogStatistics, LowerStatistics, OrderStatistics};

    use super::*;

    #[test]
    fn each_fill_level_is_reported_once_until_the_log_has_had_room_for_a_while() {
        let (mut fill, begun) = (ReportedLogFill::default(), Instant::now());
        let mut told = Vec::new();
        let mut seconds = 0;
        let mut look = |percent, refuses| {
            seconds += 1;
            let level = fill.look(percent, refuses, begun + Duration::from_secs(seconds));
            told.extend(level.map(|level| (percent, level)));
        };
        // The log is full, each destage round frees some of it, and new writes fill it again.
        for percent in [10, 79, 80, 85, 94, 95, 99, 100, 88, 100, 87, 100, 71, 100] {
            look(percent, false);
        }
        // A small log: each large write finds too little room, although the log is half empty.
        for percent in [40, 41, 40, 100].repeat(10) {
            look(percent, false);
        }
        for percent in (50..70).rev() {
            look(percent, false);
        }
        look(81, false);
        look(92, true);
        let expected = [
            (80, Level::Filling),
            (95, Level::NearlyFull),
            (100, Level::Full),
            (59, Level::Room),
            (81, Level::Filling),
            (92, Level::Full),
        ];
        assert_eq!(told, expected);
    }

    /// The input of one check: milliseconds for which calls have failed, true if there was only silence,
    /// milliseconds for which destage has been refused, the number of complete rounds, and seconds for which
    /// the link has been down.
    type Look = (Option<u64>, bool, Option<u64>, u64, Option<u64>);

    fn told(looks: impl IntoIterator<Item = Look>) -> Vec<(u64, FarVolumeTransition)> {
        let (mut far, begun) = (FarVolumeConditions::default(), Instant::now());
        let mut told = Vec::new();
        for (second, (away, is_silent, refuses, rounds, down)) in (0..).zip(looks) {
            let counted = CacheStatistics {
                lower: LowerStatistics {
                    away_ms: away,
                    is_silent,
                    refuses_ms: refuses,
                    ..LowerStatistics::default()
                },
                destage: DestageStatistics { rounds, ..DestageStatistics::default() },
                ..CacheStatistics::default()
            };
            let link = down.map(|seconds| (Duration::from_secs(seconds), "lost".into()));
            let changes = far.look(&counted, &link, begun + Duration::from_secs(second));
            told.extend(changes.into_iter().map(|change| (second, change)));
        }
        told
    }

    const WELL: Look = (None, false, None, 0, None);

    #[test]
    fn a_link_failure_is_reported_once_and_its_end_once() {
        let down = |seconds| (None, false, None, 0, Some(seconds));
        let looks = [WELL, down(0), WELL, down(0), down(1), down(2), down(3), WELL, WELL];
        assert_eq!(
            told(looks),
            [(5, FarVolumeTransition::Away), (7, FarVolumeTransition::Answers)]
        );
    }

    #[test]
    fn a_slow_flush_is_not_reported_as_a_silent_far_volume() {
        let slow = |ms| (Some(ms), true, None, 0, None);
        let round = [slow(1500), slow(2500), slow(9500), WELL];
        assert_eq!(told(round.repeat(5)), []);
        assert_eq!(
            told([slow(29_500), slow(30_500), slow(31_500)]),
            [(1, FarVolumeTransition::Away)]
        );
    }

    #[test]
    fn a_successful_read_between_failed_destage_rounds_ends_no_condition() {
        let failing = |ms| (Some(ms), false, None, 7, None);
        let between = (None, false, None, 7, None);
        let tries = [failing(2500), failing(3500), between, between, failing(100)];
        let complete = (None, false, None, 8, None);
        let looks = tries.repeat(20).into_iter().chain([between, complete, complete]);
        assert_eq!(
            told(looks),
            [(0, FarVolumeTransition::Away), (101, FarVolumeTransition::Answers)]
        );
        // No data is dirty, so there are no more destage rounds, and only the time without a failed call shows the end.
        let looks = [failing(2500)].into_iter().chain([between; 40]);
        assert_eq!(
            told(looks),
            [(0, FarVolumeTransition::Away), (30, FarVolumeTransition::Answers)]
        );
    }

    #[test]
    fn a_far_volume_without_space_is_reported_as_refusing_and_not_as_unreachable() {
        let full = (None, false, Some(500), 0, None);
        let looks = [WELL, full, full, full, WELL];
        assert_eq!(
            told(looks),
            [(1, FarVolumeTransition::Refuses), (4, FarVolumeTransition::Takes)]
        );
    }

    #[test]
    fn events_show_the_time_left_the_far_volume_and_the_remedy_in_words() {
        let words = |counted: CacheStatistics, link: LinkTrouble| {
            let log = Path::new("g.log");
            let told = CacheEventFigures { volume: "v", log, counted: &counted, link: &link };
            (told.lasts(), told.far_volume_state(), told.remedy(), told.bypasses())
        };
        let lasts = |lasts_s, fill_percent| {
            let log = LogStatistics { lasts_s, fill_percent, ..LogStatistics::default() };
            words(CacheStatistics { log, ..CacheStatistics::default() }, None).0
        };
        assert_eq!(lasts(Some(45), 80), "45 s");
        assert_eq!(lasts(Some(3599), 80), "59 min");
        assert_eq!(lasts(Some(10_000), 80), "2 h");
        assert_eq!(lasts(None, 80), "it does not fill at present");
        assert_eq!(lasts(None, 100), "it is full");
        let order =
            || OrderStatistics { order: cache::BYPASS_ALLOWED, ..OrderStatistics::default() };
        let (_, far_volume, remedy, bypasses) =
            words(CacheStatistics { order: order(), ..CacheStatistics::default() }, None);
        assert_eq!(far_volume, "it answers");
        assert!(remedy.starts_with("let the hosts write less") && bypasses, "{remedy}");
        let link = Some((Duration::from_secs(61), "no answer in time".into()));
        let (_, far_volume, remedy, bypasses) =
            words(CacheStatistics { order: order(), ..CacheStatistics::default() }, link);
        assert_eq!(far_volume, "no connection for 61 s: no answer in time");
        assert!(remedy.starts_with("make the far volume available again") && !bypasses, "{remedy}");
        let lower = LowerStatistics {
            refuses_ms: Some(61_500),
            error: Some("no space left".into()),
            ..LowerStatistics::default()
        };
        let refuses = CacheStatistics { lower, ..CacheStatistics::default() };
        let (_, far_volume, remedy, _) = words(refuses, None);
        assert_eq!(far_volume, "destage refused for 61 s: no space left");
        assert!(remedy.starts_with("remove the cause"), "{remedy}");
        let destage = DestageStatistics { paused_ms: Some(1), ..DestageStatistics::default() };
        let paused = CacheStatistics { destage, ..CacheStatistics::default() };
        let (_, far_volume, remedy, _) = words(paused, None);
        assert_eq!(far_volume, "destage is paused");
        assert!(remedy.contains("`forebay gateway resume`"), "{remedy}");
    }
}
