//! Mounts in a run's folder: file systems on attached volumes, and the files as which
//! qemu-storage-daemon exports volumes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::AtomicBool,
    time::Duration,
};

use program::WaitLimit;
use workload::Tool;

use super::{orphans::Killed, process};

/// The program that makes a block device of a file.
pub(crate) const LOSETUP: Tool = Tool { program: "losetup", package: "mount" };
/// Time limit of an unmount after the process behind the file system has ended.
const UNMOUNT: Duration = Duration::from_secs(20);
/// Maximum number of nodes of a site, each of which has one volume.
const VOLUMES: u8 = 4;

pub(crate) fn mount_point(folder: &Path, volume: u8) -> PathBuf {
    folder.join(format!("mnt-{volume}"))
}

/// Returns the path of the file as which qemu-storage-daemon exports a volume.
pub(crate) fn shown(folder: &Path, volume: u8) -> PathBuf {
    folder.join(format!("shown-{volume}"))
}

/// Unmounts every file system in a folder whose process has ended, and detaches the loop devices on
/// its files.
pub(crate) fn unmount_all(folder: &Path) {
    unmount_left(folder, &[]);
}

/// Unmounts like [`unmount_all`]. Also detaches the loop devices of `attachments`, processes of
/// `forebay attach` that were killed.
pub(crate) fn unmount_left(folder: &Path, attachments: &[Killed]) {
    let stop = AtomicBool::new(false);
    let events = folder.join("umount.events");
    // Ignore errors: if a file system remains mounted, removing the folder fails later.
    let run = |command: &mut Command| {
        let name = command.get_program().to_string_lossy().into_owned();
        let _ =
            process::run(&name, command, &None, &events, WaitLimit { limit: UNMOUNT, stop: &stop });
    };
    let volumes = 1..=VOLUMES;
    for path in volumes.flat_map(|volume| [mount_point(folder, volume), shown(folder, volume)]) {
        if !is_mounted(&path) {
            continue;
        }
        for device in loops_on(&path) {
            run(losetup(&["--detach"]).arg(device));
        }
        run(Command::new("umount").arg("--lazy").arg(&path));
    }
    for device in loops(|backing| attachments.iter().any(|it| is_shown_by(backing, *it))) {
        run(losetup(&["--detach"]).arg(device));
    }
}

pub(crate) fn losetup(arguments: &[&str]) -> Command {
    let mut command = Command::new(LOSETUP.find().unwrap_or_else(|_| LOSETUP.program.into()));
    command.args(arguments);
    command
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let wanted = path.display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&wanted))
}

/// Returns the loop devices on a file. The file itself is not accessed, since this fails if the process that serves the
/// file has ended.
fn loops_on(file: &Path) -> Vec<PathBuf> {
    loops(|backing| backing == file)
}

/// Returns true if this process of `forebay attach` exported the file. The name of such a file is
/// `forebay-SUM-PROCESS.BEGAN-VOLUME`.
fn is_shown_by(backing: &Path, Killed { process, began }: Killed) -> bool {
    let name = backing.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let parts = name.strip_prefix("forebay-").and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(_, rest)| rest.starts_with(&format!("{process}.{began}-")))
}

/// Returns the loop devices on files for which `is_meant` returns true.
fn loops(is_meant: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on_it = |sys: &Path| {
        let backing = fs::read_to_string(sys.join("loop/backing_file"));
        backing.is_ok_and(|path| is_meant(Path::new(path.trim_end_matches('\n'))))
    };
    let devices = devices.filter(|entry| on_it(&entry.path()));
    devices.map(|entry| Path::new("/dev").join(entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_an_attachment_is_recognized_by_its_process() {
        let backing = "/forebay-6e2624be60b8d041-29212.244663-iqn.2026-11.io.forebay.lab:disk_0";
        let is = |process, began| is_shown_by(Path::new(backing), Killed { process, began });
        assert!(is(29212, 244_663));
        assert!(![2921, 9212, 244_663, 2026].iter().any(|process| is(*process, 244_663)));
        // The start time must match, too, since the kernel reuses process ids.
        assert!(!is(29212, 24_466) && !is(29212, 244_664));
        assert!(!is_shown_by(Path::new("/tmp/far.img"), Killed { process: 1, began: 1 }));
    }

    #[test]
    fn unmounting_a_file_shown_by_a_peer_detaches_its_loop_device() {
        let folder = tempfile::tempdir().unwrap();
        let (backing, shown) = (folder.path().join("backing"), shown(folder.path(), 1));
        fs::write(&backing, vec![0; 1 << 20]).unwrap();
        fs::write(&shown, "").unwrap();
        let mut mount = Command::new("mount");
        let mounted = mount.arg("--bind").args([&backing, &shown]).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("not run: needs root");
            return;
        }
        let looped = losetup(&["--find"]).arg(&shown).output().unwrap();
        assert!(!looped.status.success() || loops_on(&shown).len() == 1);
        unmount_all(folder.path());
        assert!(!is_mounted(&shown) && loops_on(&shown).is_empty());
        fs::remove_file(&shown).unwrap();
    }
}
