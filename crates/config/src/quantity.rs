//! Parses sizes, times and percentages as people write them in settings.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Deserializer, de};

/// Separates the message from the remedy in the text of an error that passes through serde.
pub const REMEDY: &str = "; remedy: ";

/// A number of bytes. Written as a whole number with `B`, `KiB`, `MiB`, `GiB` or `TiB`; a bare number counts bytes.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

impl Size {
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }
}

/// The units of [`Size`], largest first.
const SIZES: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "`{text}` is not a size: {what}{REMEDY}write a whole number and one of B, KiB, \
                 MiB, GiB, TiB, as in \"64MiB\""
            )
        };
        let (number, unit) = split(text);
        let number: u64 = number.parse().map_err(|_| wrong("no whole number"))?;
        let factor = match unit {
            "" => 1,
            unit => {
                SIZES.iter().find(|(name, _)| *name == unit).ok_or_else(|| wrong("unknown unit"))?.1
            }
        };
        number.checked_mul(factor).map(Self).ok_or_else(|| wrong("too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (unit, factor) = SIZES.iter().find(fits).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// Formats a rounded number of bytes for people, such as `1.5 GiB`.
pub fn about(bytes: u64) -> String {
    let (unit, factor) = SIZES.iter().find(|(_, factor)| bytes >= *factor).unwrap_or(&("B", 1));
    if *factor == 1 {
        format!("{bytes} B")
    } else {
        format!("{:.1} {unit}", bytes as f64 / *factor as f64)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64MiB\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| {
                    E::custom(format!("a size cannot be negative{REMEDY}write 0 or more"))
                })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// A duration. Written as a whole number with `us`, `ms`, `s`, `min` or `h`; a bare `0` is zero.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    pub const fn seconds(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    pub const fn millis(count: u64) -> Self {
        Self(Duration::from_millis(count))
    }
}

/// The units of [`TimeSpan`] in microseconds, largest first.
const SPANS: [(&str, u64); 5] =
    [("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "`{text}` is not a length of time: {what}{REMEDY}write a whole number and one of \
                 us, ms, s, min, h, as in \"20ms\""
            )
        };
        let (number, unit) = split(text);
        let number: u64 = number.parse().map_err(|_| wrong("no whole number"))?;
        if number == 0 && unit.is_empty() {
            return Ok(Self::default());
        }
        let (_, factor) =
            SPANS.iter().find(|(name, _)| *name == unit).ok_or_else(|| wrong("unknown unit"))?;
        let micros = number.checked_mul(*factor).ok_or_else(|| wrong("too long"))?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        let fits = |(_, factor): &&(&str, u64)| micros >= *factor && micros.is_multiple_of(*factor);
        let (unit, factor) = SPANS.iter().find(fits).unwrap_or(&("s", 1));
        write!(f, "{}{unit}", micros / factor)
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = TimeSpan;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"20ms\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeSpan, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<TimeSpan, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Splits a text such as `20 MiB` into its digits and its unit, without spaces.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..digits], text[digits..].trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_reads_back_as_written() {
        for (text, bytes) in [("4KiB", 4096), ("10GiB", 10 << 30), ("0B", 0), ("513B", 513)] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!("64 MiB".parse(), Ok(Size::mib(64)));
        assert_eq!("4096".parse(), Ok(Size(4096)));
    }

    #[test]
    fn a_wrong_size_says_what_to_write() {
        for text in ["", "MiB", "4MB", "4 mib", "-1", "1.5GiB", "99999999999TiB"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("whole number and one of"), "{text}: {error}");
        }
    }

    #[test]
    fn a_span_reads_back_as_written() {
        for (text, micros) in
            [("20ms", 20_000), ("15s", 15_000_000), ("1min", 60_000_000), ("50us", 50)]
        {
            assert_eq!(text.parse(), Ok(TimeSpan(Duration::from_micros(micros))));
            assert_eq!(TimeSpan(Duration::from_micros(micros)).to_string(), text);
        }
        assert_eq!("0".parse(), Ok(TimeSpan::default()));
        assert_eq!(TimeSpan::default().to_string(), "0s");
    }

    #[test]
    fn a_span_needs_a_unit() {
        for text in ["20", "20 sec", "", "ms", "-1s", "18446744073709551615h"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_readers() {
        assert_eq!(about(0), "0 B");
        assert_eq!(about(1023), "1023 B");
        assert_eq!(about(3 << 29), "1.5 GiB");
    }
}
