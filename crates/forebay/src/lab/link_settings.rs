//! The settings of a link as people write them: name and value. This module has the only list of these names.

use std::{str::FromStr, time::Duration};

use config::quantity::{REMEDY, Size, TimeSpan};
use control::LinkDirectionSettings;
use wan::{BurstLossModel, DirectionSettings, PacketLossModel};

/// A setting of an emulated link, such as `delay=4ms`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LabLinkSetting {
    key: String,
    value: String,
}

impl LabLinkSetting {
    /// Makes a setting and checks its name and value.
    ///
    /// # Errors
    /// If the name or the value is invalid.
    pub fn new(key: &str, value: &str) -> Result<Self, String> {
        let word = Self { key: key.to_owned(), value: value.to_owned() };
        word.set(&mut DirectionSettings::default())?;
        Ok(word)
    }

    /// Applies the setting. Ranges are checked later, together with all other settings.
    ///
    /// # Errors
    /// If the name or the value is invalid.
    pub fn set(&self, settings: &mut DirectionSettings) -> Result<(), String> {
        let value = self.value.trim();
        match self.key.as_str() {
            "delay" => settings.delay = span(value)?,
            "jitter" => settings.jitter = span(value)?,
            "jitter-reorders" => settings.jitter_reorders = yes(value)?,
            "rate" => settings.rate = rate(value)?,
            "queue" => settings.queue_bytes = value.parse::<Size>()?.0,
            "queue-packets" => settings.queue_packets = number(value)?,
            "overhead" => settings.overhead = value.parse::<Size>()?.0,
            "loss" => settings.loss = PacketLossModel::Random(share(value)?),
            "bursts" => settings.loss = PacketLossModel::Bursts(burst(value)?),
            "mtu" => settings.mtu = number(value)?,
            "reorder" => settings.reorder = share(value)?,
            "reorder-by" => settings.reorder_by = span(value)?,
            "duplicate" => settings.duplicate = share(value)?,
            "corrupt" => settings.corrupt = share(value)?,
            "background" => settings.background = share(value)?,
            "outage" => settings.is_up = !yes(value)?,
            other => {
                return Err(format!(
                    "`{other}` is not a setting of a link{REMEDY}see `forebay lab wan run --help`"
                ));
            }
        }
        Ok(())
    }
}

/// Parses a setting in the form `key=value`.
impl FromStr for LabLinkSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a setting{REMEDY}write it as in \"delay=4ms\"");
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        Self::new(key, value)
    }
}

impl std::fmt::Display for LabLinkSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.key, self.value)
    }
}

/// Returns the settings of a direction that differ from the defaults, and always the delay.
pub fn words(settings: &DirectionSettings) -> LinkDirectionSettings {
    let usual = all(&DirectionSettings::default());
    let different =
        |(key, word): &(&str, String)| *key == "delay" || !usual.contains(&(*key, word.clone()));
    let different = all(settings).into_iter().filter(different);
    different.map(|(key, word)| (key.to_owned(), word)).collect()
}

fn all(settings: &DirectionSettings) -> Vec<(&'static str, String)> {
    let span = |time: Duration| TimeSpan(time).to_string();
    let percent = |share: f64| format!("{}%", (share * 1e8).round() / 1e6);
    let loss = match settings.loss {
        PacketLossModel::Random(share) => ("loss", percent(share)),
        PacketLossModel::Bursts(BurstLossModel { begin, end, loss_bad, loss_good }) => {
            ("bursts", [begin, end, loss_bad, loss_good].map(percent).join(","))
        }
    };
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    vec![
        ("delay", span(settings.delay)),
        ("jitter", span(settings.jitter)),
        ("jitter-reorders", yes(settings.jitter_reorders)),
        ("rate", settings.rate.map_or_else(|| "none".to_owned(), rate_word)),
        ("queue", Size(settings.queue_bytes).to_string()),
        ("queue-packets", settings.queue_packets.to_string()),
        ("overhead", Size(settings.overhead).to_string()),
        loss,
        ("mtu", settings.mtu.to_string()),
        ("reorder", percent(settings.reorder)),
        ("reorder-by", span(settings.reorder_by)),
        ("duplicate", percent(settings.duplicate)),
        ("corrupt", percent(settings.corrupt)),
        ("background", percent(settings.background)),
        ("outage", yes(!settings.is_up)),
    ]
}

/// Decimal units of link rates with their bits per second, largest first.
const RATES: [(&str, u64); 4] =
    [("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1000), ("bit", 1)];

fn rate(text: &str) -> Result<Option<u64>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || {
        format!(
            "`{text}` is not a rate{REMEDY}write a whole number and one of bit, kbit, Mbit, Gbit \
             (a second), as in \"155Mbit\", or none"
        )
    };
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = text.split_at(digits);
    let factor = RATES.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(wrong)?.1;
    let count: u64 = count.parse().map_err(|_| wrong())?;
    count.checked_mul(factor).map(Some).ok_or_else(wrong)
}

fn rate_word(rate: u64) -> String {
    let fits = |(_, factor): &&(&str, u64)| rate.is_multiple_of(*factor);
    let (unit, factor) = RATES.iter().find(fits).unwrap_or(&("bit", 1));
    format!("{}{unit}", rate / factor)
}

fn span(text: &str) -> Result<Duration, String> {
    text.parse::<TimeSpan>().map(|span| span.0)
}

fn share(text: &str) -> Result<f64, String> {
    let (number, whole) = match text.strip_suffix('%') {
        Some(number) => (number.trim_end(), 100.0),
        None => (text, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| {
        format!("`{text}` is not a share{REMEDY}write it as in \"2.7%\" or \"0.027\"")
    })?;
    Ok(number / whole)
}

fn burst(text: &str) -> Result<BurstLossModel, String> {
    let shares: Vec<f64> =
        text.split(',').map(|text| share(text.trim())).collect::<Result<_, _>>()?;
    let (begin, end, loss_bad, loss_good) = match shares[..] {
        [begin, end] => (begin, end, 1.0, 0.0),
        [begin, end, bad] => (begin, end, bad, 0.0),
        [begin, end, bad, good] => (begin, end, bad, good),
        _ => {
            return Err(format!(
                "`{text}` is not a description of bursts{REMEDY}write two to four shares: that \
                 one begins before a packet, that it ends, loss in it (100%), loss between (0%)"
            ));
        }
    };
    Ok(BurstLossModel { begin, end, loss_bad, loss_good })
}

fn yes(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err(format!("`{text}` is neither yes nor no{REMEDY}write one of them")),
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    let wrong =
        |_| format!("`{text}` is not a number in the allowed range{REMEDY}write a whole number");
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_reads_back_as_shown() {
        let given = [
            "delay=4ms",
            "jitter=500us",
            "jitter-reorders=yes",
            "rate=155Mbit",
            "queue=1MiB",
            "queue-packets=50",
            "overhead=8B",
            "bursts=0.5%,20%,90%,0.1%",
            "mtu=9000",
            "reorder=1%",
            "reorder-by=2ms",
            "duplicate=0.3%",
            "corrupt=0.01%",
            "background=40%",
            "outage=yes",
        ];
        let mut settings = DirectionSettings::default();
        for word in given {
            word.parse::<LabLinkSetting>().unwrap().set(&mut settings).unwrap();
        }
        let shown = words(&settings);
        assert_eq!(shown.len(), given.len());
        for word in given {
            let (key, value) = word.split_once('=').unwrap();
            assert_eq!(shown[key], value);
        }
        assert_eq!(settings.check(), Ok(()));
        let usual = words(&DirectionSettings::default());
        assert_eq!(usual.into_iter().collect::<Vec<_>>(), [("delay".to_owned(), "0s".to_owned())]);
    }

    #[test]
    fn loss_and_rates_are_written_as_links_are_sold() {
        for text in ["loss=2.7%", "loss=0.027"] {
            let mut settings = DirectionSettings::default();
            text.parse::<LabLinkSetting>().unwrap().set(&mut settings).unwrap();
            assert!((settings.loss.mean() - 0.027).abs() < 1e-12);
            assert_eq!(words(&settings)["loss"], "2.7%");
        }
        assert_eq!(rate("1Gbit"), Ok(Some(1_000_000_000)));
        assert_eq!(rate("none"), Ok(None));
        assert_eq!(rate_word(1_500_000), "1500kbit");
    }

    #[test]
    fn an_invalid_link_setting_is_refused_with_the_valid_form() {
        for text in [
            "delay",
            "delay=4",
            "speed=1",
            "rate=155",
            "rate=1MB",
            "rate=99999999999Gbit",
            "loss=x",
            "bursts=1%",
            "mtu=70000",
            "outage=on",
            "jitter-reorders=1",
            "queue=1MB",
        ] {
            let error = text.parse::<LabLinkSetting>().unwrap_err();
            assert!(error.contains(REMEDY), "{text}: {error}");
        }
    }
}
