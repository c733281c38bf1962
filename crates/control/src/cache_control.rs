//! Commands to the cache of a unit (`forebay gateway`), and their answers.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A unit as the command line names it: `TARGET` or `TARGET/LUN`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnitName {
    /// iSCSI name of the target.
    pub target: String,
    /// LUN.
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

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.target, self.lun)
    }
}

/// A command to a cache.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheControlCommand {
    /// Start no more destage writes.
    Pause,
    /// End a pause.
    Resume,
    /// Limit the rate of destage.
    Rate(Rate),
    /// Destage what was acknowledged by now. Repeat it, with the mark of the answer, until the answer is `done`.
    Flush {
        /// The mark of the previous answer; `None` the first time.
        mark: Option<u64>,
    },
    /// Destage all dirty data. Repeat it until the answer is `done`.
    Drain,
    /// Change the size of the log. Repeat it until the answer is `done`.
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

/// A limit for the rate of destage.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// Bytes per second.
    Bytes(u64),
    /// The limit of the settings.
    Settings,
    /// No limit.
    Unlimited,
}

/// State of a cache after a command.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CacheControlStatus {
    /// True if a flush or drain is complete and stable at the far side, or if the log has its new size. Other
    /// commands are always done at once.
    pub done: bool,
    /// Bytes that the far side lacks.
    pub dirty_bytes: u64,
    /// Bytes of these that destage has sent in the current round; they count as dirty until its end.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Local time at which destage was paused; `None` if it is not paused.
    pub paused_since: Option<String>,
    /// Most bytes per second that destage may send; 0: none, `None`: no limit.
    pub rate_limit: Option<u64>,
    /// Bytes per second that destage sends now.
    pub rate: u64,
    /// The present error of the far side; `None` if it accepts data.
    pub lower_error: Option<String>,
    /// The position up to which a flush destages.
    pub mark: Option<u64>,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// A log that was closed for another host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Exported {
    /// Instance id of the log.
    pub log: String,
    /// Number of times that the log was opened.
    pub generation: u64,
    /// Bytes that the far side lacks.
    pub dirty_bytes: u64,
    /// Serial number by which hosts know the unit.
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
}
