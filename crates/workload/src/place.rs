//! Where a workload runs.

use std::{convert::Infallible, fmt, os::unix::fs::FileTypeExt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

/// Where a workload runs. What it makes in a folder it removes; what is on a device or volume it
/// overwrites.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A folder of any file system.
    Folder(PathBuf),
    /// A block device.
    Device(PathBuf),
    /// An iSCSI unit, as `iscsi://HOST/TARGET/LUN`, used without the kernel's block layer.
    Url(String),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        if text.contains("://") {
            return Ok(Self::Url(text.to_owned()));
        }
        let path = PathBuf::from(text);
        let is_device = path.metadata().is_ok_and(|about| about.file_type().is_block_device());
        Ok(if is_device { Self::Device(path) } else { Self::Folder(path) })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) | Self::Device(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}
