//! A volume that `forebay attach` attaches to the host, with a mounted file system or without.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    time::Duration,
};

use program::{LoggedProgram, WaitLimit};
use rustix::process::Signal;
use workload::WorkloadLocation;

use super::{
    mounts::{mount_point, unmount_all},
    process::{self, StageNamespace},
    settings::TARGET,
};
use crate::{Error, Host};

/// Time limit until a volume is attached. The time includes filling a log with zeros and making a file system. The link
/// has no delay at this time.
const READY: Duration = Duration::from_secs(300);
/// Time limit of a detach, whose last writes cross the link with its delay.
const END: Duration = Duration::from_secs(180);
/// Time limit of a detach if the volume never became ready. Such a volume has little unwritten data.
const GIVEN_UP: Duration = Duration::from_secs(20);

/// A volume that `forebay attach` serves as a block device.
pub(crate) struct LabAttachment {
    process: LoggedProgram,
    pub place: WorkloadLocation,
    mounted: Option<PathBuf>,
}

impl LabAttachment {
    /// Attaches a volume with these settings, and makes and mounts the file system that `host` asks
    /// for.
    pub fn start(
        number: u8,
        program: &Path,
        folder: &Path,
        namespace: &StageNamespace,
        settings: &str,
        host: &Host,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        let path = folder.join(format!("host-{number}.toml"));
        fs::write(&path, settings).map_err(Error::file("write", &path))?;
        let mut command = Command::new(program);
        command.args(["attach", TARGET, "--config"]).arg(&path).stdin(Stdio::null());
        let mut mounted = None;
        if let Host::Mounted(options) = host {
            let mount = mount_point(folder, number);
            fs::create_dir(&mount).map_err(Error::file("make", &mount))?;
            // `noinit_itable`: otherwise a kernel thread would clear inode tables while the
            // workload runs.
            let options = [options.as_str(), "noinit_itable"].join(",");
            command.args(["--mkfs", "ext4", "--mount-options", options.trim_start_matches(',')]);
            command.arg("--mount").arg(&mount);
            mounted = Some(mount);
        }
        let events = folder.join(format!("host-{number}.events"));
        let name = format!("the attachment of volume {number}");
        let mut process = process::start(name, &mut command, namespace, &events, Signal::TERM)?;
        let ready = process.line(WaitLimit { limit: READY, stop }).inspect_err(|_| {
            // Ask the process to end. If it were killed, its device and the mounted file system
            // would remain.
            let _ = process.ask_to_end(GIVEN_UP);
        })?;
        let device = ready.strip_prefix("ready ").and_then(|it| it.split(' ').next());
        let place = match (&mounted, device) {
            (Some(mount), Some(_)) => WorkloadLocation::Folder(mount.clone()),
            (None, Some(device)) => WorkloadLocation::Device(device.into()),
            (_, None) => {
                let name = format!("the attachment of volume {number}");
                let what = "printed no device in its ready line".to_owned();
                return Err(program::Error::Failed { name, what, said: ready }.into());
            }
        };
        Ok(Self { process, place, mounted })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Writes all data and detaches the volume.
    pub fn end(self, folder: &Path) -> Result<(), Error> {
        let ended = self.process.end(END);
        if ended.is_err() && self.mounted.is_some() {
            unmount_all(folder);
        }
        Ok(ended?)
    }
}
