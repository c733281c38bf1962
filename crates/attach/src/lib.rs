//! A volume as a block device of this host: a FUSE file over the volume, and a loop device on that
//! file. Linux only, and for who may mount.
//!
//! The file system that holds the file is mounted nowhere: the loop device has the file open, and
//! that alone keeps it. So nothing is left behind by a process that is killed, and nobody meets the
//! file but the loop device.

mod error;
mod content;
mod losses;
mod requests;
mod process;
mod name;
mod file;
mod apart;
mod loop_device;
mod mounts;
mod users;

pub use content::{VolumeContent, content};
pub use error::{AttachStep, Error};
pub use file::{ServedFile, ServedFileOptions, VolumeFile};
pub use loop_device::{LoopDevice, LoopOptions, sync, unmount};
pub use losses::LostWrites;
pub use name::FileName;
pub use process::HostProcess;
pub use users::{DeviceUser, Leftover, backing, busy_with, is_hidden, leftovers, users};
