//! Attached volumes for tests: checks for root and devices, and cleanup after a failed test.

// Each test file uses only a part of this module.
#![allow(dead_code)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Duration,
};

use program::RunningProgram;

use crate::support::{Place, Running, forebay, start, stderr};

/// Time limit of each step of a test, much longer than any step takes.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn is_possible() -> bool {
    let opens = |path: &&str| fs::OpenOptions::new().read(true).write(true).open(path).is_ok();
    let possible = rustix::process::geteuid().is_root()
        && ["/dev/fuse", "/dev/loop-control"].iter().all(opens)
        && Path::new("/usr/sbin/mkfs.ext4").is_file();
    if !possible {
        println!("not run: needs root, /dev/fuse, /dev/loop-control and mkfs.ext4");
    }
    possible
}

/// A folder to mount on. Dropping it unmounts it, in case the test has failed.
pub struct Mount(pub PathBuf, Turn);

/// A program with a mount namespace of its own keeps a copy of every mount that exists when it starts, and thereby
/// keeps the devices of all running tests in use. Therefore a test that starts such a program runs only while no other
/// test has a mount.
static MOUNTS: RwLock<()> = RwLock::new(());

/// The lock on `MOUNTS`, held while a test has a mount.
enum Turn {
    BesideOthers(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

impl Mount {
    pub fn new(place: &Place) -> Self {
        let turn = MOUNTS.read().unwrap_or_else(PoisonError::into_inner);
        Self(Self::folder(place), Turn::BesideOthers(turn))
    }

    /// Makes a folder for a test that starts programs in mount namespaces of their own.
    pub fn alone(place: &Place) -> Self {
        let turn = MOUNTS.write().unwrap_or_else(PoisonError::into_inner);
        Self(Self::folder(place), Turn::Alone(turn))
    }

    fn folder(place: &Place) -> PathBuf {
        let folder = place.path("mnt");
        fs::create_dir(&folder).expect("a folder");
        folder
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        mounts.contains(&format!(" {} ", self.0.display()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        while self.is_mounted() {
            let left = Command::new("umount").arg("-l").arg(&self.0).status();
            if !left.is_ok_and(|status| status.success()) {
                break;
            }
        }
    }
}

pub fn attach(arguments: &[&str]) -> Running {
    try_attach(arguments).unwrap_or_else(|error| panic!("not attached: {error}"))
}

pub fn try_attach(arguments: &[&str]) -> Result<Running, String> {
    let mut running = start(forebay().arg("attach").args(arguments))?;
    let events = running.stderr();
    std::thread::spawn(move || {
        use std::io::BufRead;
        for line in std::io::BufReader::new(events).lines().map_while(Result::ok) {
            println!("{line}");
        }
    });
    Ok(running)
}

pub fn detach(what: impl AsRef<std::ffi::OsStr>) -> Output {
    forebay().arg("detach").arg(what).output().expect("the binary runs")
}

pub fn detached(mut running: Running) {
    let output = detach(&running.ready);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(running.wait().success());
    assert!(!has_device(&running), "the loop device is cleared");
}

/// Returns true if the device still belongs to the process: another test may have got that number meanwhile.
pub fn has_device(running: &Running) -> bool {
    let name = fs::read_to_string(backing(&running.ready)).unwrap_or_default();
    name.contains(&format!("-{}.", running.program.id()))
}

fn backing(device: &str) -> PathBuf {
    let name = Path::new(device).file_name().expect("a name");
    Path::new("/sys/block").join(name).join("loop/backing_file")
}

/// Waits until a program has ended by itself, at most for [`LIMIT`]. Returns true if its exit code is 0.
pub fn ends(program: &mut RunningProgram) -> bool {
    program.ended(LIMIT).expect("a child").expect("it ends").success()
}
