//! The storage that a workload uses: a folder, a block device or an iSCSI unit.

use std::{
    convert::Infallible,
    fmt,
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom},
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use rustix::{fs::OFlags, io::Errno};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The place where a workload runs. In a folder, the workload removes its own files at the end. The content of a device
/// or unit is overwritten.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WorkloadLocation {
    /// A folder of any file system.
    Folder(PathBuf),
    /// A block device, whose content is overwritten.
    Device(PathBuf),
    /// An iSCSI unit, as `iscsi://HOST/TARGET/LUN`. The workload itself is the initiator, so the
    /// kernel's block layer is not involved.
    Url(String),
}

impl WorkloadLocation {
    /// Returns true if a workload destroys the present content: devices and units, but not folders.
    #[must_use]
    pub fn is_overwritten(&self) -> bool {
        !matches!(self, Self::Folder(_))
    }

    /// Checks that the folder or device exists and that the device is not in use. Returns the free bytes; `None` for a
    /// unit, whose size only its target knows.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::InUse`], or an error of a system call.
    pub fn room(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Folder(path) if !path.exists() => {
                Err(Error::Absent(format!("there is no folder {}", path.display())))
            }
            Self::Folder(path) if !path.is_dir() => Err(Error::Absent(format!(
                "{} is neither a folder nor a block device",
                path.display()
            ))),
            Self::Folder(path) => {
                let about = rustix::fs::statvfs(path).map_err(io::Error::from);
                let about = about.map_err(Error::system(format!("look at {}", path.display())))?;
                Ok(Some(about.f_bavail * about.f_frsize))
            }
            Self::Device(path) => {
                let mut device = open_device(path, OFlags::empty())?;
                let size = device.seek(SeekFrom::End(0));
                size.map(Some).map_err(Error::system(format!("look at {}", path.display())))
            }
            Self::Url(_) => Ok(None),
        }
    }
}

/// Opens a device exclusively for reading and writing. While it is open, the kernel refuses to mount the device, to
/// build another device on it, or to open it exclusively again.
pub(crate) fn open_device(path: &Path, more: OFlags) -> Result<File, Error> {
    let flags = (OFlags::EXCL | more).bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    opened.map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::BUSY) => Error::InUse(path.to_owned()),
        _ => Error::system(format!("open {}", path.display()))(error),
    })
}

impl FromStr for WorkloadLocation {
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

impl fmt::Display for WorkloadLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) | Self::Device(path) => write!(f, "{}", path.display()),
            Self::Url(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_location_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let at =
            |name: &str| folder.path().join(name).display().to_string().parse::<WorkloadLocation>();
        let error = at("none").unwrap().room().unwrap_err().to_string();
        assert!(error.starts_with("there is no folder /"), "{error}");
        std::fs::write(folder.path().join("file"), "x").unwrap();
        let error = at("file").unwrap().room().unwrap_err().to_string();
        assert!(error.ends_with("is neither a folder nor a block device"), "{error}");
        assert!(at("").unwrap().room().unwrap() > Some(0));
    }

    #[test]
    fn a_url_is_a_url_wherever_it_leads() {
        let place = "iscsi://a/iqn.x:y/0".parse::<WorkloadLocation>().unwrap();
        assert_eq!(place, WorkloadLocation::Url("iscsi://a/iqn.x:y/0".to_owned()));
        assert!(place.is_overwritten());
    }
}
