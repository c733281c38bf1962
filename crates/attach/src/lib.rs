//! A volume as a block device of this host: a FUSE file over the volume, and a loop device on that file. This
//! works only on Linux and needs the privilege to mount.
//!
//! The file system with this file is mounted nowhere. Only the loop device keeps the file open. Therefore a
//! killed process leaves nothing behind, and no other program can open the file.

mod error;
mod volume_content;
mod lost_writes;
mod fuse_requests;
mod host_process;
mod file_name;
mod fuse_file;
mod unshared_files;
mod loop_device;
mod mounts;
mod device_users;

pub use device_users::{DeviceUser, Leftover, backing, busy_with, is_hidden, leftovers, users};
pub use error::{AttachStep, Error};
pub use file_name::FileName;
pub use fuse_file::{ServedFile, ServedFileOptions, VolumeFile};
pub use host_process::HostProcess;
pub use loop_device::{LoopDevice, LoopOptions, sync, unmount};
pub use lost_writes::LostWrites;
pub use volume_content::{VolumeContent, content};
