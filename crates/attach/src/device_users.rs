//! The users of a loop device, as the kernel reports them: mounts, devices built on it, swap, processes.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::{
    FileName, HostProcess, LoopDevice,
    mounts::{self, MountLine},
};

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DeviceUser {
    /// A file system on the device is mounted at this path.
    Mount(PathBuf),
    /// A file system on the device is mounted in another mount namespace. Unmounting it in this namespace
    /// does not unmount it in the other one.
    MountElsewhere {
        /// The mount point, as processes of the other mount namespace see it.
        place: PathBuf,
        id: u32,
        name: String,
    },
    /// The device is a part of another block device (device mapper, RAID).
    Device(String),
    Swap,
    /// A process has opened the device, or has its working directory on the device's file system.
    Process {
        id: u32,
        name: String,
    },
}

impl fmt::Display for DeviceUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount(place) => write!(f, "mounted on {}", place.display()),
            Self::MountElsewhere { place, id, name } => write!(
                f,
                "mounted on {} in the mount namespace of process {id} ({name})",
                place.display()
            ),
            Self::Device(name) => write!(f, "part of {name}"),
            Self::Swap => f.write_str("swap space"),
            Self::Process { id, name } => write!(f, "open in process {id} ({name})"),
        }
    }
}

/// Returns the users of `/dev/loopN` and its partitions, except this process. The list lacks users that this
/// process is not allowed to see.
#[must_use]
pub fn users(number: u32) -> Vec<DeviceUser> {
    let devices = devices(number);
    let here: Vec<MountLine> =
        MountLine::all().into_iter().filter(|line| is_on(line, &devices)).collect();
    let mut found: Vec<DeviceUser> =
        here.iter().rev().map(|line| DeviceUser::Mount(line.place.clone())).collect();
    let elsewhere = mounts::elsewhere(&here, |line| is_on(line, &devices)).into_iter();
    found.extend(elsewhere.map(|(id, place)| DeviceUser::MountElsewhere {
        place,
        id,
        name: name_of(id),
    }));
    for device in &devices {
        let holders = fs::read_dir(device.system.join("holders")).into_iter().flatten().flatten();
        found.extend(
            holders.map(|holder| DeviceUser::Device(holder.file_name().to_string_lossy().into())),
        );
    }
    let is_ours = |path: &Path| devices.iter().any(|device| device.path == path);
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().filter_map(|line| line.split(' ').next()).any(|path| is_ours(path.as_ref())) {
        found.push(DeviceUser::Swap);
    }
    found.extend(processes(is_ours));
    found
}

/// Returns true if a mount of `/dev/loopN` by this process is invisible in the login session from which the process was
/// started, because this process has a mount namespace of its own. Returns false if that cannot be determined.
#[must_use]
pub fn is_hidden(number: u32) -> bool {
    let devices = devices(number);
    let session = mounts::of_session_elsewhere();
    session.is_some_and(|session| !session.iter().any(|line| is_on(line, &devices)))
}

/// Returns the users that keep a mount from being unmounted: processes with open files or working folders on it, and
/// mounts below it.
#[must_use]
pub fn busy_with(mount: &Path) -> Vec<DeviceUser> {
    let below = |place: &Path| place != mount && place.starts_with(mount);
    let mounts = MountLine::all().into_iter().filter(|line| below(&line.place));
    let mut found: Vec<DeviceUser> = mounts.map(|line| DeviceUser::Mount(line.place)).collect();
    found.extend(processes(|link| link.starts_with(mount)));
    found
}

/// A loop device on a file that a process of this program serves, or served before it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Leftover {
    /// The N in the device name `/dev/loopN`.
    pub number: u32,
    pub mounts: Vec<PathBuf>,
    /// The process that serves the file under the loop device, or that did so before it ended.
    pub process: HostProcess,
    /// True if a process still serves the file, whether or not the volume answers.
    pub is_alive: bool,
}

/// Returns the loop devices whose files have `volume` as their [`FileName::volume`].
#[must_use]
pub fn leftovers(volume: &str) -> Vec<Leftover> {
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = blocks.filter_map(|entry| entry.file_name().into_string().ok());
    let numbers = names.filter_map(|name| name.strip_prefix("loop")?.parse().ok());
    let ours = numbers.filter_map(|number| {
        let process = backing(number).filter(|name| name.volume == volume)?.process;
        Some((number, process))
    });
    let ours: Vec<(u32, HostProcess)> = ours.collect();
    let found = ours.into_iter().map(|(number, process)| Leftover {
        number,
        mounts: mounts(&devices(number)),
        process,
        // `is_running` cannot see a process in another container. Therefore also ask the kernel whether a process still
        // serves the file.
        is_alive: process.is_running() || LoopDevice { number }.is_served(),
    });
    found.collect()
}

/// Returns the name of the file on which `/dev/loopN` is set up, if a process of this program made the file.
#[must_use]
pub fn backing(number: u32) -> Option<FileName> {
    let file = format!("/sys/block/loop{number}/loop/backing_file");
    FileName::parse(&fs::read_to_string(file).ok()?)
}

struct HostBlockDevice {
    path: PathBuf,
    /// The folder of the device in /sys.
    system: PathBuf,
    /// The device number as `MAJOR:MINOR`.
    id: String,
}

fn devices(number: u32) -> Vec<HostBlockDevice> {
    let name = format!("loop{number}");
    let folder = Path::new("/sys/block").join(&name);
    let prefix = format!("{name}p");
    let inside = fs::read_dir(&folder).into_iter().flatten().flatten();
    let names = inside.filter_map(|entry| entry.file_name().into_string().ok());
    let partitions = names.filter(|name| name.starts_with(&prefix));
    let mut found: Vec<(String, PathBuf)> =
        partitions.map(|name| (name.clone(), folder.join(name))).collect();
    found.push((name, folder));
    let device = |(name, system): (String, PathBuf)| HostBlockDevice {
        path: Path::new("/dev").join(name),
        id: fs::read_to_string(system.join("dev")).unwrap_or_default().trim().to_owned(),
        system,
    };
    found.into_iter().map(device).collect()
}

/// Returns the mount points of file systems on these devices in the order in which they can be unmounted, the last
/// mount first.
fn mounts(devices: &[HostBlockDevice]) -> Vec<PathBuf> {
    let all = MountLine::all().into_iter();
    let mut found: Vec<PathBuf> =
        all.filter(|line| is_on(line, devices)).map(|line| line.place).collect();
    found.reverse();
    found
}

/// Returns true if this is the mount of a file system on one of these devices.
fn is_on(line: &MountLine, devices: &[HostBlockDevice]) -> bool {
    devices.iter().any(|device| device.id == line.device || device.path == line.source)
}

/// Returns the processes with an open file or a working folder that `is_meant` accepts.
fn processes(is_meant: impl Fn(&Path) -> bool) -> Vec<DeviceUser> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let using = ids.filter(|id| *id != std::process::id()).filter(|id| {
        let folder = PathBuf::from(format!("/proc/{id}"));
        let files = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
        let links = files.map(|entry| entry.path());
        let links = links.chain(["cwd", "root", "exe"].map(|name| folder.join(name)));
        links.filter_map(|link| fs::read_link(link).ok()).any(|link| is_meant(&link))
    });
    using.map(|id| DeviceUser::Process { id, name: name_of(id) }).collect()
}

fn name_of(id: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
    name.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_in_a_folder_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().canonicalize().unwrap();
        let mut child =
            std::process::Command::new("sleep").arg("60").current_dir(&place).spawn().unwrap();
        let found = busy_with(&place);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(
            matches!(&found[..], [DeviceUser::Process { id, .. }] if *id == child.id()),
            "{found:?}"
        );
    }
}
