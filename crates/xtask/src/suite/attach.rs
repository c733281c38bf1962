//! Volumes attached to this machine as block devices. fio writes to the device and to ext4 on it,
//! and checks every block that it has written: with both modes of the loop device, after the volume
//! was attached again, and after the attaching process was killed.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rig::device::{self, AttachedTestDevice};
use rig::node::ServeProcess;

use crate::side_steps::{KernelChange, StepNeed};
use crate::step_list::StepList;
use crate::steps::StepTally;
use crate::suite::fio;

const NAME: &str = "iqn.2026-11.forebay.test:attach";

/// Time limit of e2fsck for half a gigabyte.
const CHECK_LIMIT: Duration = Duration::from_secs(60);

/// Time limit within which every pending request must fail after the kill.
const ERROR_LIMIT: Duration = Duration::from_secs(30);

/// Number of times that the serving process is killed under load.
const KILLS: usize = 4;

/// The modes of the loop device: the name of each, and its command line options.
const MODES: [(&str, &[&str]); 2] = [("direct I/O", &[]), ("no direct I/O", &["--no-direct-io"])];

/// Adds all steps if this machine can attach volumes. Steps with file systems mount them in the
/// namespace of all processes.
pub fn steps<'a>(list: &mut StepList<'a>, program: &'a Path) {
    if let Some(why) = device::missing() {
        return list.leave_out(format!("attached volumes: {why}"));
    }
    let mounts = StepNeed::PLACE.changing(KernelChange::Mounts);
    for (name, mode) in MODES {
        list.add(&format!("attach: fio on the device, {name}"), move || raw(program, mode));
        let ext4 = format!("attach: fio on ext4, {name}");
        list.add_with(mounts, &ext4, move || files(program, mode));
    }
    let cache = "attach: fio on a cache in the process";
    list.add_with(mounts, cache, move || cached(program));
    list.add_with(mounts, "attach: kill -9 under load", move || kills(program));
}

/// A node with a volume of half a gigabyte in a file, and the folder for these files.
struct AttachSuiteSite {
    folder: tempfile::TempDir,
    node: ServeProcess,
}

impl AttachSuiteSite {
    fn start(program: &Path) -> Result<AttachSuiteSite> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("mnt"))?;
        let settings = format!(
            "listen = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\n\
             serial = \"attach-{}\"\nstack = [{{ file = {{ path = \"disk.img\", size = \"512MiB\" }} }}]\n",
            // A volume can be attached to a host only once, so concurrent runs of this suite use
            // different names.
            std::process::id()
        );
        let node = ServeProcess::start(program, folder.path(), "node", &settings)?;
        Ok(AttachSuiteSite { folder, node })
    }

    fn attach(&self, program: &Path, more: &[&str]) -> Result<AttachedTestDevice> {
        let url = self.node.url(NAME, 0);
        let arguments: Vec<&str> = [url.as_str()].into_iter().chain(more.iter().copied()).collect();
        AttachedTestDevice::attach(program, self.folder.path(), &arguments)
    }

    fn mount(&self) -> String {
        self.folder.path().join("mnt").display().to_string()
    }

    /// Attaches the volume, and makes and mounts a file system on it.
    fn attach_mounted(&self, program: &Path, mode: &[&str]) -> Result<AttachedTestDevice> {
        let mount = self.mount();
        let mounted = ["--mkfs", "ext4", "--mount", &mount];
        self.attach(program, &[mode, &mounted[..]].concat())
    }

    /// Fails unless the file system on the volume is intact (e2fsck).
    fn check(&self) -> Result<()> {
        let image = self.folder.path().join("disk.img");
        let mut command = Command::new(fio::tool("e2fsck")?);
        let finished = program::run(command.arg("-fn").arg(image), CHECK_LIMIT)?;
        ensure!(finished.success(), "e2fsck {}: {}", finished.ending(), finished.tail(8));
        Ok(())
    }
}

impl Drop for AttachSuiteSite {
    /// Unmounts the file system, which a failed test may have left mounted.
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.mount(), rustix::mount::UnmountFlags::DETACH);
    }
}

/// Four fio jobs, each on a quarter of the device, write blocks and verify them. Then the volume is detached and
/// attached again, and the same jobs verify all blocks again.
fn raw(program: &Path, mode: &[&str]) -> Result<StepTally> {
    let site = AttachSuiteSite::start(program)?;
    let mut tally = StepTally::default();
    for (bytes, depth) in [("4k", 32), ("64k", 16), ("512", 8), ("1m", 4)] {
        let (mut one, mut depth_text) = (Vec::new(), depth.to_string());
        depth_text.insert_str(0, "--iodepth=");
        let size = if bytes == "512" { "--size=2m" } else { "--size=24m" };
        one.extend(["--direct=1", "--ioengine=libaio", "--numjobs=4", "--offset_increment=96m"]);
        let bytes = format!("--bs={bytes}");
        one.extend([size, bytes.as_str(), depth_text.as_str()]);
        let device = site.attach(program, mode)?;
        fio::run(&[&one[..], &["--do_verify=1", "--filename", device.path()]].concat())?;
        device.detach()?;
        let device = site.attach(program, mode)?;
        fio::run(&[&one[..], &["--verify_only", "--filename", device.path()]].concat())?;
        device.detach()?;
        tally.count(true);
    }
    Ok(tally)
}

/// fio jobs of several kinds write and verify files. Then the file system is unmounted, checked
/// with e2fsck, mounted again and verified.
fn files(program: &Path, mode: &[&str]) -> Result<StepTally> {
    let site = AttachSuiteSite::start(program)?;
    let mut tally = StepTally::default();
    let mount = site.mount();
    let kinds: [&[&str]; 3] = [
        &["--name=cached", "--ioengine=psync", "--bs=8k", "--fsync=16"],
        &["--name=direct", "--ioengine=libaio", "--iodepth=16", "--direct=1", "--bs=16k"],
        &["--name=mapped", "--ioengine=mmap", "--bs=4k"],
    ];
    for kind in kinds {
        let all = ["--numjobs=3", "--size=16m", "--directory", &mount];
        let device = site.attach_mounted(program, mode)?;
        fio::run(&[kind, &all, &["--do_verify=1"]].concat())?;
        device.detach()?;
        site.check()?;
        let device = site.attach_mounted(program, mode)?;
        fio::run(&[kind, &all, &["--verify_only"]].concat())?;
        device.detach()?;
        tally.count(true);
    }
    Ok(tally)
}

/// Tests an attached volume with a cache: the attaching process itself runs the cache, with a log, over the node's
/// volume, as a gateway would.
fn cached(program: &Path) -> Result<StepTally> {
    let site = AttachSuiteSite::start(program)?;
    let settings = format!(
        "control = \"near.sock\"\n[[target]]\nname = \"{NAME}\"\n[[target.unit]]\nstack = [\n\
         {{ remote = {{ url = \"{}\" }} }},\n\
         {{ cache = {{ log = \"near.log\", log_size = \"128MiB\", nvram_size = \"1MiB\", dram = \"16MiB\" }} }},\n]\n",
        site.node.url(NAME, 0)
    );
    let path = site.folder.path().join("near.toml");
    std::fs::write(&path, settings)?;
    let path = path.display().to_string();
    let mut tally = StepTally::default();
    // Write more than the log can hold.
    let job = ["--direct=1", "--ioengine=libaio", "--iodepth=16", "--bs=16k", "--size=192m"];
    for check in ["--do_verify=1", "--verify_only"] {
        let device =
            AttachedTestDevice::attach(program, site.folder.path(), &[NAME, "--config", &path])?;
        fio::run(&[&job[..], &[check, "--filename", device.path()]].concat())?;
        device.detach()?;
        tally.count(true);
    }
    Ok(tally)
}

/// The process that attaches the volume is killed while fio writes files: fio must get an error and
/// must not hang. Files that were synced before must be there afterwards, on an intact file system.
fn kills(program: &Path) -> Result<StepTally> {
    let site = AttachSuiteSite::start(program)?;
    let mount = site.mount();
    let mut tally = StepTally::default();
    let kept = ["--name=kept", "--ioengine=psync", "--bs=8k", "--size=16m", "--end_fsync=1"];
    let kept = [&kept[..], &["--directory", &mount]].concat();
    for round in 0..KILLS {
        let (_, mode) = MODES[round % MODES.len()];
        let mut device = site.attach_mounted(program, mode)?;
        let check = if round == 0 { "--do_verify=1" } else { "--verify_only" };
        fio::run(&[&kept[..], &[check]].concat())?;
        let mut load = fio::command(&[
            "--name=load",
            "--ioengine=libaio",
            "--direct=1",
            "--iodepth=16",
            "--bs=64k",
            "--size=64m",
            "--time_based",
            "--runtime=120",
            "--numjobs=2",
            "--directory",
            &mount,
        ])?;
        let mut load = program::start(load.stdout(Stdio::null()).stderr(Stdio::null()))?;
        let under_load = load.ended(Duration::from_millis(1500 + 300 * round as u64))?;
        ensure!(under_load.is_none(), "fio ended before the kill: {under_load:?}");
        device.kill()?;
        let ended =
            load.ended(ERROR_LIMIT)?.context("fio hangs on a device whose process was killed")?;
        tally.count(!ended.success());
    }
    let device = site.attach_mounted(program, &[])?;
    fio::run(&[&kept[..], &["--verify_only"]].concat())?;
    device.detach()?;
    site.check()?;
    tally.count(true);
    Ok(tally)
}
