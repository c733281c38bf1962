//! What can be asked of a cache while it serves, and what it answers.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::{REMEDY, Size};

/// A unit as it is named on the command line: a target, and a LUN if that is not 0.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnitName {
    /// The target's iSCSI name.
    pub target: String,
    /// The unit's number.
    pub lun: u16,
}

impl FromStr for UnitName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (target, lun) = text.split_once('/').unwrap_or((text, "0"));
        let lun = lun.parse().map_err(|_| format!("`{lun}` is not the number of a unit"))?;
        Ok(Self { target: target.to_owned(), lun })
    }
}

impl std::fmt::Display for UnitName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.target, self.lun)
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheControlCommand {
    /// Begin nothing more at the far side.
    Pause,
    /// End a pause.
    Resume,
    /// Go no faster than this.
    Rate(Rate),
    /// Send down what was acknowledged by now. Asked again with the mark of the answer until it is
    /// done.
    Flush {
        /// From the answer before; `None`: the first time.
        mark: Option<u64>,
    },
    /// Send down all there is. Asked again until it is done.
    Drain,
    /// Give the log another size. Asked again until it is done.
    #[serde(rename = "log-resize")]
    LogResize {
        /// Bytes; `None`: as many as its device has.
        bytes: Option<u64>,
    },
    /// Open a half of the log's mirror anew, and fill it.
    Renew {
        /// 0 or 1.
        half: u8,
    },
}

/// How fast destage may go.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// So many bytes per second.
    Bytes(u64),
    /// As the settings say.
    Settings,
    /// As fast as the link takes it.
    Unlimited,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at_least = Size::kib(4);
        match text {
            "settings" => Ok(Self::Settings),
            "unlimited" => Ok(Self::Unlimited),
            _ => match text.parse::<Size>()? {
                rate if rate < at_least => Err(format!(
                    "{rate} in a second is less than {at_least}{REMEDY}to send nothing at all, pause"
                )),
                rate => Ok(Self::Bytes(rate.0)),
            },
        }
    }
}

/// How a cache stands after an order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CacheControlStatus {
    /// What a flush or drain was asked for is at the far side, stable, or the log has its size; other orders are
    /// done at once.
    pub done: bool,
    /// Bytes that are not at the far side.
    pub dirty_bytes: u64,
    /// Bytes of these that destage has sent in the current round; they count as dirty until its end.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Since when destage is paused, if it is.
    pub paused_since: Option<String>,
    /// Bytes per second that may go down; 0: none, `None`: as many as the link takes.
    pub rate_limit: Option<u64>,
    /// Bytes per second that go down now.
    pub rate: u64,
    /// Why the far side does not take anything, if it does not.
    pub lower_error: Option<String>,
    /// How far a flush goes.
    pub mark: Option<u64>,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// What is known of a log that was put away for another host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Exported {
    /// Its instance id.
    pub log: String,
    /// How often it was opened.
    pub generation: u64,
    /// What the far side does not have yet.
    pub dirty_bytes: u64,
    /// By which hosts know the unit.
    pub serial: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_named_by_target_and_number() {
        let name: UnitName = "iqn.a:b/7".parse().unwrap();
        assert_eq!((name.target.as_str(), name.lun), ("iqn.a:b", 7));
        assert_eq!(name.to_string(), "iqn.a:b/7");
        assert_eq!("iqn.a:b".parse::<UnitName>().unwrap().lun, 0);
        assert!("iqn.a:b/x".parse::<UnitName>().is_err());
    }

    #[test]
    fn a_rate_is_bytes_or_a_word() {
        assert_eq!("20 MiB".parse(), Ok(Rate::Bytes(20 << 20)));
        assert_eq!("settings".parse(), Ok(Rate::Settings));
        assert_eq!("unlimited".parse(), Ok(Rate::Unlimited));
        for wrong in ["0", "1", "fast"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
