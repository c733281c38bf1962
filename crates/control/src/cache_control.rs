//! The commands of `forebay gateway` to the cache of a unit, and their responses.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A unit as the command line names it: `TARGET` or `TARGET/LUN`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnitName {
    pub target: String,
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

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheControlCommand {
    /// Stop sending destage writes. Writes in flight complete.
    Pause,
    Resume,
    /// Limit the rate of destage.
    Rate(Rate),
    /// Destage everything that is acknowledged now. Repeat the command with the `mark` of the response until `done` is
    /// true.
    Flush {
        /// The mark of the previous response; `None` in the first command.
        mark: Option<u64>,
    },
    /// Destage all dirty data. Repeat the command until `done` is true.
    Drain,
    /// Change the size of the log. Repeat the command until `done` is true.
    #[serde(rename = "log-resize")]
    LogResize {
        /// New size in bytes; `None` for the size of the log's device.
        bytes: Option<u64>,
    },
    /// Open a lost leg of the log's mirror again, and copy the content of the other leg to it.
    Renew {
        /// Number of the leg, 0 or 1.
        half: u8,
    },
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rate {
    /// Limit in bytes per second.
    Bytes(u64),
    /// The limit that the settings file gives.
    Settings,
    Unlimited,
}

/// State of a cache after a command.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CacheControlStatus {
    /// True if a flush or drain is complete and stable on the far volume, or if the log has its new size. All other
    /// commands complete at once.
    pub done: bool,
    /// Bytes in the log that the far volume lacks.
    pub dirty_bytes: u64,
    /// Dirty bytes that destage has sent in the current round. They count as dirty until the far volume has flushed
    /// them at the end of the round.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Local time at which destage was paused; `None` if it is not paused.
    pub paused_since: Option<String>,
    /// Maximum rate of destage in bytes per second: 0 sends nothing, `None` is no limit.
    pub rate_limit: Option<u64>,
    /// Present rate of destage in bytes per second.
    pub rate: u64,
    /// Present error of the far volume; `None` if it accepts data.
    pub lower_error: Option<String>,
    /// Log position up to which a flush destages; pass it with the next `Flush`.
    pub mark: Option<u64>,
    /// Size of the log in bytes.
    pub log_bytes: u64,
}

/// A log that was closed for another host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Exported {
    /// Instance id of the log.
    pub log: String,
    /// Number of times that the log has been opened (log generation).
    pub generation: u64,
    /// Bytes in the log that the far volume lacks.
    pub dirty_bytes: u64,
    /// Serial number by which hosts recognize the unit.
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
