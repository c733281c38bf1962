//! Events of a cache: a log that fills (at 80 %, at 95 %, when it is full, and when it has room again),
//! and a far volume that does not answer. Each condition gets one event when it begins and one when it ends.

use std::{
    path::{Path, PathBuf},
    sync::Weak,
    time::Duration,
};

use cache::{Cache, Statistics};

use crate::quantity::about;

/// The highest fill level that the log has reached since it last had room. The event of a level is not
/// repeated before the log has emptied to [`ROOM_AGAIN`]: each destage round frees an eighth of a full log,
/// and the next writes fill it again within seconds.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum Level {
    #[default]
    Room,
    Filling,
    NearlyFull,
    Full,
}

impl Level {
    /// Returns the level for a log that is so full. `refuses`: hosts got BUSY since the last check.
    fn next(self, percent: u64, refuses: bool) -> Self {
        let seen = match percent {
            100.. => Self::Full,
            _ if refuses => Self::Full,
            95.. => Self::NearlyFull,
            80.. => Self::Filling,
            ..ROOM_AGAIN => return Self::Room,
            _ => Self::Room,
        };
        self.max(seen)
    }
}

/// Checks the log of `cache` each second for as long as the cache lives.
pub async fn watch(cache: Weak<Cache>, volume: String, log: PathBuf) {
    let mut level = Level::default();
    let mut refused = 0;
    let mut is_away = false;
    while let Some(cache) = cache.upgrade() {
        let counted = cache.statistics();
        drop(cache);
        let refuses = counted.refused_busy > std::mem::replace(&mut refused, counted.refused_busy)
            && counted.log_fill_percent >= NEARLY;
        let next = level.next(counted.log_fill_percent, refuses);
        if next != level {
            tell(next, &counted, &volume, &log);
            level = next;
        }
        if let Some(away) = changed(is_away, counted.lower_away_ms) {
            is_away = away;
            tell_of_far_side(away, &counted, &volume, &log);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn tell(level: Level, counted: &Statistics, volume: &str, log: &Path) {
    let log = log.display();
    let percent = counted.log_fill_percent;
    let dirty = about(counted.dirty_bytes);
    let lasts = lasts(counted);
    let far_side = far_side(counted);
    match level {
        Level::Room => tracing::info!(
            volume, %log, percent, dirty, far_side, "the log has room again"
        ),
        Level::Filling | Level::NearlyFull => tracing::warn!(
            volume, %log, percent, dirty, lasts, far_side, "the log fills up"
        ),
        Level::Full => tracing::error!(
            volume, %log, dirty, far_side,
            "the log is full: writes wait for room, and get BUSY after `busy_after`; bring the far \
             volume back, or make the log larger with `forebay gateway log-resize`"
        ),
    }
}

/// Returns the new state of the far volume (true: it does not answer) if the state has changed.
fn changed(was_away: bool, away_ms: Option<u64>) -> Option<bool> {
    match away_ms {
        None if was_away => Some(false),
        Some(AWAY_AFTER_MS..) if !was_away => Some(true),
        _ => None,
    }
}

fn tell_of_far_side(away: bool, counted: &Statistics, volume: &str, log: &Path) {
    let log = log.display();
    let dirty = about(counted.dirty_bytes);
    if away {
        let (far_side, lasts) = (far_side(counted), lasts(counted));
        tracing::warn!(
            volume, %log, dirty, lasts, far_side,
            "the far volume does not answer: what is written stays in the log until it does"
        );
    } else {
        tracing::info!(volume, %log, dirty, "the far volume answers again");
    }
}

/// Returns in words the time until the log is full.
fn lasts(counted: &Statistics) -> String {
    match counted.log_lasts_s {
        None => "it does not fill at present".to_owned(),
        Some(seconds @ 0..120) => format!("{seconds} s"),
        Some(seconds @ 120..7200) => format!("{} min", seconds / 60),
        Some(seconds) => format!("{} h", seconds / 3600),
    }
}

/// Returns in words the state of the far volume.
fn far_side(counted: &Statistics) -> String {
    match (counted.lower_away_ms, &counted.lower_error) {
        (Some(ms), Some(error)) => format!("away for {} s: {error}", ms / 1000),
        _ if counted.paused_ms.is_some() => "destage is paused".to_owned(),
        _ if counted.destage_rate_limit == Some(0) => "destage may send nothing now".to_owned(),
        _ => "it answers".to_owned(),
    }
}

/// The percentage below which a log that was filling has room again.
const ROOM_AGAIN: u64 = 70;
/// The percentage from which a refusal with BUSY is counted as one for want of room.
const NEARLY: u64 = 90;
/// A far volume that has not answered for so long gets an event. Hosts do not notice so short a time, and one
/// lost call does not take so long.
const AWAY_AFTER_MS: u64 = 2000;
/// A log of 64 GiB at 1 GB/s goes from 80 % to full in 13 s.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_is_told_once_until_the_log_has_room_again() {
        let mut level = Level::default();
        let mut told = Vec::new();
        // Full, and filled again after each round of destage.
        for percent in [10, 79, 80, 85, 94, 95, 99, 100, 88, 100, 87, 100, 71, 100, 69, 60, 75, 81]
        {
            let next = level.next(percent, false);
            if next != level {
                told.push((percent, next));
                level = next;
            }
        }
        let expected = [
            (80, Level::Filling),
            (95, Level::NearlyFull),
            (100, Level::Full),
            (69, Level::Room),
            (81, Level::Filling),
        ];
        assert_eq!(told, expected);
        assert_eq!(Level::Filling.next(92, true), Level::Full, "a large write was refused");
    }

    #[test]
    fn a_far_side_that_is_away_is_told_of_once_and_once_when_it_is_back() {
        let mut is_away = false;
        let mut told = Vec::new();
        for away_ms in [None, Some(300), None, Some(1999), Some(2500), Some(3500), None, None] {
            if let Some(away) = changed(is_away, away_ms) {
                told.push(away);
                is_away = away;
            }
        }
        assert_eq!(told, [true, false]);
    }

    #[test]
    fn the_time_left_and_the_far_side_are_told_in_words() {
        let counted = |seconds, away| Statistics {
            log_lasts_s: seconds,
            lower_away_ms: away,
            lower_error: away.map(|_| "no answer".to_owned()),
            ..Statistics::default()
        };
        assert_eq!(lasts(&counted(Some(45), None)), "45 s");
        assert_eq!(lasts(&counted(Some(3599), None)), "59 min");
        assert_eq!(lasts(&counted(Some(10_000), None)), "2 h");
        assert_eq!(far_side(&counted(None, Some(61_500))), "away for 61 s: no answer");
        assert_eq!(far_side(&counted(None, None)), "it answers");
    }
}
