//! A file system in its place, where the program finds it.

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
use crate::powercut::system::{Core, Honour, System};
use crate::powercut::tree::Tree;

/// Why nothing can be mounted here; `None` if it can.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount a file system".to_owned());
    }
    // Root in a container may lack the right for one of the calls. A thread of its own keeps the mounts apart.
    match std::thread::spawn(try_all).join() {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(_) => Some("mounting a file system panicked".to_owned()),
    }
}

/// Mounts, replaces and unmounts everything once that the power cuts need.
fn try_all() -> Result<()> {
    private_namespace()?;
    let folder = tempfile::tempdir()?;
    let (disk, supply) = (folder.path().join("disk"), Supply::new(1));
    Mounted::mount(Tree::new(), &disk, &supply, 0, Arc::new(|_| true))?.unmount()?;
    Boot::new(folder.path().join("boot_id"), &mut Chance::new(0)).map(drop)
}

/// Gives this thread, and the programs that it starts from now on, mounts of their own: nobody else
/// sees them, and they are gone with the last process that does, however that ends.
pub fn private_namespace() -> Result<()> {
    // SAFETY: only this thread leaves the namespace, which also gives it a working directory of its
    // own; nothing of that reaches memory.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot make a mount namespace");
    }
    let flags = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).context("cannot make mounts private")
}

/// What programs in this thread's mount namespace read as the id of this run of the kernel
/// (`boot_id` of proc(5)). It is the machine's own again when this is dropped.
pub struct Boot {
    file: PathBuf,
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

impl Boot {
    /// Puts an id, which `file` holds, in the place of the kernel's. Wants [`private_namespace`].
    pub fn new(file: PathBuf, chance: &mut Chance) -> Result<Boot> {
        let boot = Boot { file };
        boot.renew(chance)?;
        rustix::mount::mount_bind(&boot.file, BOOT_ID).context("cannot replace the boot's id")?;
        Ok(boot)
    }

    /// The machine has started anew.
    pub fn renew(&self, chance: &mut Chance) -> Result<()> {
        let id = format!("{:016x}{:016x}", chance.any(), chance.any());
        let parts = [&id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..]];
        fs::write(&self.file, parts.join("-") + "\n").context("cannot write the boot's id")
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(BOOT_ID, UnmountFlags::DETACH);
    }
}

/// A mounted file system. It is unmounted when this is dropped.
pub struct Mounted {
    core: Arc<Core>,
    path: PathBuf,
    server: Option<JoinHandle<io::Result<()>>>,
}

/// Threads that take requests. A sync and a write can be under way at once.
const THREADS: usize = 2;

impl Mounted {
    /// Mounts a tree at a path, which is made if it is not there.
    pub fn mount(
        tree: Tree,
        path: &Path,
        supply: &Arc<Supply>,
        machine: usize,
        honour: Honour,
    ) -> Result<Mounted> {
        fs::create_dir_all(path)?;
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.context("/dev/fuse")?;
        attach(&device, path).with_context(|| format!("cannot mount at {}", path.display()))?;
        let core = Core::new(tree, Arc::clone(supply), machine, honour);
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let system = System(Arc::clone(&core));
        let session = Session::from_fd(system, device.into(), SessionACL::All, config)?;
        let server = std::thread::Builder::new().name("powercut".into());
        let server = server.spawn(move || session.run())?;
        Ok(Mounted { core, path: path.to_owned(), server: Some(server) })
    }

    /// A copy of the tree as it is now.
    #[cfg(test)]
    pub fn tree(&self) -> Tree {
        self.core.tree()
    }

    /// Unmounts it; the tree as it is then. Processes that had files of it open must have ended: what is
    /// open still fails from now on.
    pub fn unmount(mut self) -> Result<Tree> {
        self.end()?;
        Ok(self.core.tree())
    }

    fn end(&mut self) -> Result<()> {
        let Some(server) = self.server.take() else { return Ok(()) };
        // FORCE ends the connection, so that a file that is open somewhere does not keep the server.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let unmounted = rustix::mount::unmount(&self.path, flags);
        unmounted.with_context(|| format!("cannot unmount {}", self.path.display()))?;
        let ended = server.join().map_err(|_| anyhow::anyhow!("the file system panicked"))?;
        match ended {
            // A thread of the server that asks for the next call after FORCE is answered so.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            ended => ended.context("the file system ended badly"),
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
