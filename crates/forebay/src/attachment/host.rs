//! The host of an attachment: checks that it has all required parts before anything is changed, and prepares a process
//! on which the kernel's memory reclaim depends.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use attach::AttachStep;
use control::Failure;
use rustix::mm::MlockAllFlags;

use crate::cli::Attach;

/// Checks that this host can do what the command line requests, such as creating block devices.
pub fn check(args: &Attach) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("only root may make block devices and mount them")
            .remedy("start it with sudo, or as a system service"));
    }
    for (part, path) in
        [(AttachStep::Fuse, "/dev/fuse"), (AttachStep::LoopControl, "/dev/loop-control")]
    {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        opened.map_err(|error| refusal(&attach::Error { part, error }))?;
    }
    if let Some(folder) = &args.mount {
        let found = fs::metadata(folder).map_err(|error| {
            Failure::new(format!("cannot mount on {}: {error}", folder.display()))
                .remedy(format!("make it: mkdir -p {}", folder.display()))
        })?;
        if !found.is_dir() {
            return Err(Failure::new(format!(
                "cannot mount on {}: it is not a folder",
                folder.display()
            ))
            .remedy("name a folder with --mount"));
        }
        find_program("mount", "mount")?;
    }
    if let Some(kind) = &args.mkfs {
        let package = match kind.as_str() {
            "ext2" | "ext3" | "ext4" => "e2fsprogs",
            "xfs" => "xfsprogs",
            "btrfs" => "btrfs-progs",
            "vfat" | "fat" => "dosfstools",
            "f2fs" => "f2fs-tools",
            _ => "the package of your distribution that has this program",
        };
        find_program(&format!("mkfs.{kind}"), package)?;
    }
    Ok(())
}

/// Finds a program in the search path or in the folders of system programs.
fn find_program(name: &str, package: &str) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let mut files = folders.map(|folder| folder.join(name));
    if files.any(|file| file.is_file()) {
        return Ok(());
    }
    Err(Failure::new(format!("there is no program {name}")).remedy(format!("install {package}")))
}

/// Folders of mkfs and mount, which a user's search path may lack.
pub const SYSTEM_FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Converts a failed step of an attachment to a failure that names the remedy.
pub fn refusal(error: &attach::Error) -> Failure {
    let kind = error.error.kind();
    let is_denied = kind == ErrorKind::PermissionDenied;
    let missing = matches!(kind, ErrorKind::NotFound)
        || matches!(error.error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
    let in_container = "start it outside of the container, or give the container \
                        CAP_SYS_ADMIN, /dev/fuse, /dev/loop-control and the loop devices";
    let remedy = match &error.part {
        AttachStep::Fuse if missing => {
            "load FUSE: modprobe fuse (in a container: --device /dev/fuse)"
        }
        AttachStep::LoopControl if missing => {
            "load the loop driver: modprobe loop (in a container: --device /dev/loop-control)"
        }
        AttachStep::LoopDevice(_) if missing => "in a container: give it the host's /dev",
        AttachStep::Fuse
        | AttachStep::FuseMount
        | AttachStep::LoopControl
        | AttachStep::LoopDevice(_)
            if is_denied =>
        {
            in_container
        }
        AttachStep::FuseMount => "Linux 5.11 or newer with FUSE is needed",
        AttachStep::LoopSetUp(_) => {
            "Linux 5.11 or newer is needed; where it cannot do direct I/O, try --no-direct-io"
        }
        AttachStep::LoopFlush(_) => "check that the target answers",
        _ => return Failure::new(error),
    };
    Failure::new(error).remedy(remedy)
}

/// Tells the kernel not to wait for writes to our own device when this process needs memory: it would wait for itself.
/// This applies to the calling thread and the threads that it starts, so call it before the runtime is made.
///
/// If the kernel refuses, a warning is logged and the attachment continues.
pub fn serve_writeback() {
    // SAFETY: PR_SET_IO_FLUSHER takes only numbers.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } < 0 {
        let error = std::io::Error::last_os_error();
        tracing::warn!(
            %error,
            remedy = "nothing has to be done unless memory is short: give this process CAP_SYS_RESOURCE then, \
             also in its container",
            "the kernel may wait for this process when memory is short (PR_SET_IO_FLUSHER)"
        );
    }
    // Lock pages once they are touched: none of our pages may be swapped out, since the swap may be on our own device.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(error) = rustix::mm::mlockall(flags) {
        tracing::warn!(
            %error,
            remedy = "nothing has to be done unless memory is short: give this process CAP_IPC_LOCK then, \
             also in its container",
            "this process may be swapped out (mlockall)"
        );
    }
}

/// From linux/prctl.h.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Makes the kernel kill this process last when memory is exhausted: the device depends on it.
pub fn end_last() {
    if let Err(error) = fs::write(Path::new("/proc/self/oom_score_adj"), "-1000") {
        tracing::warn!(
            %error,
            remedy = "nothing has to be done unless memory is short: give this process CAP_SYS_RESOURCE then, \
             also in its container",
            "the kernel may kill this process when memory is exhausted (oom_score_adj)"
        );
    }
}
