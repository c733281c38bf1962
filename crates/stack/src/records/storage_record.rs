//! The record of a volume file, a device or the log of a cache, as it was when last opened.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The record of one path: which file, device or log a unit or common cache used there when it was last opened.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StorageRecord {
    /// The absolute path of the storage, as [`super::folder::absolute`] returns it.
    pub path: PathBuf,
    /// The absolute path as the settings had it, if that is another one because a link is part of it. While the
    /// link leads nowhere, the record is found by this path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub named: Option<PathBuf>,
    /// The unit (`TARGET/LUN`) or the common cache that used the storage.
    pub used_by: String,
    /// The absolute path of the settings file of that user; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<PathBuf>,
    /// Local time of the last opening. It is for people only: no decision depends on it.
    pub opened: String,
    #[serde(flatten)]
    pub storage: Storage,
}

/// The kind of storage, with the properties that show whether it has been replaced.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Storage {
    /// A file or block device with the blocks of a volume.
    Volume(VolumeIdentity),
    /// The log of a cache, or one leg of a mirrored log.
    Log(LogIdentity),
}

/// The properties by which the file or device of a volume is recognized.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct VolumeIdentity {
    /// Size of the file or device in bytes.
    pub bytes: u64,
    /// True if the file system has allocated blocks to the file, so something was written. Never true for a
    /// device.
    pub is_written: bool,
    /// The random id in its extended attribute, in hexadecimal digits; `None` if the file system keeps no such
    /// attributes.
    pub id: Option<String>,
    /// Device number of the file system that holds the file.
    pub device: u64,
    pub inode: u64,
}

/// The properties by which a log is recognized, and the data that it may hold.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LogIdentity {
    /// The instance id in the superblocks of the log, in hexadecimal digits.
    pub instance: String,
    /// True if the far volume had all data when the log was last stopped, or when a cache without write-back
    /// opened it.
    pub is_drained: bool,
    /// True if the log was exported and may be adopted on another host.
    pub is_exported: bool,
    /// Bytes that only the log held when the record was written; more may have come since.
    pub dirty_bytes: u64,
    /// Local time at which the record was written. For people only: no decision depends on the clock.
    pub noted: String,
    #[serde(default)]
    pub mirror: Option<PathBuf>,
}

impl StorageRecord {
    /// Returns true if the storage may hold acknowledged data that would be lost with it.
    pub fn may_hold_data(&self) -> bool {
        match &self.storage {
            Storage::Volume(_) => true,
            Storage::Log(log) => !log.is_drained,
        }
    }

    pub fn mirror(&self) -> Option<&Path> {
        match &self.storage {
            Storage::Log(log) => log.mirror.as_deref(),
            Storage::Volume(_) => None,
        }
    }
}

/// Returns the local time, for people.
pub fn now() -> String {
    jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/formats/state.md` documents these fields. Later versions must be able to read the records of this
    /// version, so the names must not change.
    #[test]
    fn the_json_of_a_record_has_the_documented_fields() {
        let log = LogIdentity {
            instance: "0a".repeat(16),
            dirty_bytes: 4096,
            noted: "then".into(),
            mirror: Some("/b/second.log".into()),
            ..LogIdentity::default()
        };
        let record = StorageRecord {
            path: "/a/gw.log".into(),
            named: None,
            used_by: "iqn.a:b/0".into(),
            settings: Some("/etc/forebay.toml".into()),
            opened: "now".into(),
            storage: Storage::Log(log),
        };
        let json = serde_json::json!({
            "path": "/a/gw.log", "used_by": "iqn.a:b/0", "settings": "/etc/forebay.toml", "opened": "now", "kind": "log",
            "instance": "0a".repeat(16), "is_drained": false, "is_exported": false,
            "dirty_bytes": 4096, "noted": "then", "mirror": "/b/second.log",
        });
        assert_eq!(serde_json::to_value(&record).unwrap(), json);
        assert_eq!(serde_json::from_value::<StorageRecord>(json).unwrap(), record);
        let json = serde_json::json!({
            "path": "/a/v.img", "named": "/link/v.img", "used_by": "iqn.a:b/0", "opened": "now", "kind": "volume",
            "bytes": 8192, "is_written": true, "id": null, "device": 1, "inode": 2,
        });
        let read: StorageRecord = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), json);
        assert!(read.may_hold_data());
    }
}
