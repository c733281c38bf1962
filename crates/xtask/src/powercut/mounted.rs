//! Mounts the file system for tests, and gives the processes of a test their own boot id.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use fuser::{Config, Session, SessionACL};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
};

use crate::powercut::fate::Chance;
use crate::powercut::supply::Supply;
use crate::powercut::system::{FaultFsCore, Honour, System};
use crate::powercut::tree::FaultFsTree;

/// Returns the reason why this machine cannot mount the file system; `None` if it can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount a file system".to_owned());
    }
    // Root in a container may lack the privilege for one of the calls, so try them all. Use another thread for this,
    // because the calls give their thread a new mount namespace, which ends with that thread.
    match std::thread::spawn(try_all).join() {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("mounting a file system panicked".to_owned()),
    }
}

/// Makes each kind of mount that the power cuts need once, and unmounts it again.
fn try_all() -> Result<()> {
    private_namespace()?;
    let folder = tempfile::tempdir()?;
    let (disk, supply) = (folder.path().join("disk"), Supply::new(1));
    Mounted::mount(FaultFsTree::new(), &disk, &supply, 0, Arc::new(|_| true))?.unmount()?;
    Boot::new(folder.path().join("boot_id"), &mut Chance::new(0)).map(drop)
}

/// Gives this thread, and the programs that it starts from now on, another mount namespace. Other
/// processes do not see its mounts, and the kernel removes them when its last process ends.
pub fn private_namespace() -> Result<()> {
    // SAFETY: unshare(CLONE_NEWNS) moves only this thread, which also gets its own working
    // directory (CLONE_FS). It does not touch memory of this process.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot make a mount namespace");
    }
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).context("cannot make mounts private")
}

/// Replaces the kernel's boot id (`boot_id` of proc(5)) for programs in this thread's mount namespace.
/// Dropping it makes the machine's own boot id visible again.
pub struct Boot {
    file: PathBuf,
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Boot {
    /// Writes a new boot id to `file` and mounts that file over the kernel's. Call [`private_namespace`] before,
    /// or every process of the machine reads the false id.
    pub fn new(file: PathBuf, chance: &mut Chance) -> Result<Boot> {
        let boot = Boot { file };
        boot.renew(chance)?;
        rustix::mount::mount_bind(&boot.file, BOOT_ID).context("cannot replace the boot id")?;
        Ok(boot)
    }

    /// Draws a new boot id, as a reboot of the machine does.
    pub fn renew(&self, chance: &mut Chance) -> Result<()> {
        let id = format!("{:016x}{:016x}", chance.any(), chance.any());
        let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
        fs::write(&self.file, parts.join("-") + "\n").context("cannot write the boot id")
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(BOOT_ID, UnmountFlags::DETACH);
    }
}

/// A simulated file system that is mounted. Dropping this unmounts it.
pub struct Mounted {
    core: Arc<FaultFsCore>,
    path: PathBuf,
    server: Option<JoinHandle<io::Result<()>>>,
}

/// Threads that serve FUSE requests: two, so that a sync and a write can be in progress
/// concurrently.
const THREADS: usize = 2;

impl Mounted {
    /// Mounts the file system `tree` on the folder `path`, which is created if it does not exist.
    pub fn mount(
        tree: FaultFsTree,
        path: &Path,
        supply: &Arc<Supply>,
        machine: usize,
        honour: Honour,
    ) -> Result<Mounted> {
        fs::create_dir_all(path)?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.context("/dev/fuse")?;
        attach(&device, path).with_context(|| format!("cannot mount at {}", path.display()))?;
        let core = FaultFsCore::new(tree, Arc::clone(supply), machine, honour);
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let system = System(Arc::clone(&core));
        let session = Session::from_fd(system, device.into(), SessionACL::All, config)?;
        let server = std::thread::Builder::new().name("powercut".into());
        let server = server.spawn(move || session.run())?;
        Ok(Mounted { core, path: path.to_owned(), server: Some(server) })
    }

    /// Returns a copy of the file system's contents while it stays mounted.
    #[cfg(test)]
    pub fn tree(&self) -> FaultFsTree {
        self.core.tree()
    }

    /// Unmounts the file system and returns its tree. The caller must end all processes with open
    /// files on it first: afterwards every call on an open file fails.
    pub fn unmount(mut self) -> Result<FaultFsTree> {
        self.end()?;
        Ok(self.core.tree())
    }

    fn end(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        // FORCE ends the FUSE connection. Without it, a file that a process still has open would keep the server
        // thread running, and the join below would never return.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let unmounted = rustix::mount::unmount(&self.path, flags);
        unmounted.with_context(|| format!("cannot unmount {}", self.path.display()))?;
        let ended = server.join().map_err(|_| anyhow::anyhow!("the file system panicked"))?;
        match ended {
            // A server thread that reads the next request after FORCE gets this error; the server did not fail.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            ended => ended.context("the file system failed"),
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            println!("{error:#}");
        }
    }
}

fn attach(device: &File, path: &Path) -> io::Result<()> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen, move_mount};
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(context.as_fd(), key, value);
    set("source", "powercut")?;
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mount, "", rustix::fs::CWD, path, flags)?;
    Ok(())
}
