//! Destage rates for times of the day.

use std::fmt;

use serde::{Deserialize, Deserializer};

use super::value_types::ParsedTextVisitor;
use crate::quantity::{REMEDY, Size};

/// A part of the day with its own rate.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Hours {
    pub from: TimeOfDay,
    /// End of the part; if before `from`, on the next day.
    pub to: TimeOfDay,
    /// Maximum rate in bytes per second; 0 stops destage.
    pub rate: Size,
}

impl Hours {
    fn contains(&self, now: TimeOfDay) -> bool {
        if self.from <= self.to {
            (self.from..self.to).contains(&now)
        } else {
            now >= self.from || now < self.to
        }
    }
}

/// The destage rates over a day.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Schedule {
    /// The first entry that contains the present time applies.
    pub hours: Vec<Hours>,
    /// Rate in bytes per second at all other times; `None` for no limit.
    pub otherwise: Option<u64>,
}

impl Schedule {
    /// Returns the rate in bytes per second: 0 for no destage, `None` for no limit.
    pub fn rate_at(&self, now: TimeOfDay) -> Option<u64> {
        let hours = self.hours.iter().find(|hours| hours.contains(now));
        hours.map_or(self.otherwise, |hours| Some(hours.rate.0))
    }
}

/// A time of the day in minutes since midnight, 0 to 1440. Written as `08:30`; the end of a day is `24:00`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct TimeOfDay(pub u16);

impl TimeOfDay {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.len() {
            2 if text.bytes().all(|c| c.is_ascii_digit()) => text.parse::<u16>().ok(),
            _ => None,
        };
        let parts = text.split_once(':').and_then(|(h, m)| Some((number(h)?, number(m)?)));
        match parts {
            Some((hour @ 0..24, minute @ 0..60)) => Ok(Self(hour * 60 + minute)),
            Some((24, 0)) => Ok(Self(24 * 60)),
            _ => Err(format!(
                "`{text}` is not a time of day{REMEDY}write hours and minutes, from \"00:00\" to \"24:00\""
            )),
        }
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(ParsedTextVisitor("a time of day such as \"08:30\"", Self::parse))
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> TimeOfDay {
        TimeOfDay::parse(text).unwrap()
    }

    fn hours(from: &str, to: &str, rate: u64) -> Hours {
        Hours { from: time(from), to: time(to), rate: Size(rate) }
    }

    #[test]
    fn the_first_hours_that_fit_hold() {
        let schedule = Schedule {
            hours: vec![hours("12:00", "13:00", 7), hours("08:00", "18:00", 3)],
            otherwise: None,
        };
        for (now, expected) in [
            ("07:59", None),
            ("08:00", Some(3)),
            ("12:00", Some(7)),
            ("13:00", Some(3)),
            ("17:59", Some(3)),
            ("18:00", None),
        ] {
            assert_eq!(schedule.rate_at(time(now)), expected, "{now}");
        }
    }

    #[test]
    fn hours_may_cross_midnight_or_end_at_24_00() {
        let schedule = |from, to| Schedule { hours: vec![hours(from, to, 0)], otherwise: Some(9) };
        for (now, night, evening) in
            [("21:59", 9, 9), ("22:00", 0, 0), ("23:59", 0, 0), ("00:00", 0, 9), ("06:00", 9, 9)]
        {
            assert_eq!(schedule("22:00", "06:00").rate_at(time(now)), Some(night), "{now}");
            assert_eq!(schedule("22:00", "24:00").rate_at(time(now)), Some(evening), "{now}");
        }
    }

    #[test]
    fn an_invalid_time_of_day_is_refused() {
        for wrong in ["", "8", "8:00", "24:01", "25:00", "08:60", "08-00", "+8:00", "08:000"] {
            assert!(TimeOfDay::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(time("08:05").to_string(), "08:05");
    }
}
