//! Peers in place of Forebay's programs: tgt or nbdkit as the node, qemu-storage-daemon as the
//! host's initiator.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use program::{LoggedProgram, WaitLimit};
use rig::tgt::{TgtPlan, TgtServer};
use rustix::process::Signal;
use workload::{Tool, WorkloadLocation};

use super::{
    mounts::{self, LOSETUP, losetup},
    process::{self, StageNamespace},
};
use crate::Error;

/// The daemon of tgt, and the tool that configures it.
pub(crate) const TGT: [Tool; 2] =
    [Tool { program: "tgtd", package: "tgt" }, Tool { program: "tgtadm", package: "tgt" }];
/// The program nbdkit, whose package also contains the plugin `memory`.
pub(crate) const NBDKIT: Tool = Tool { program: "nbdkit", package: "nbdkit" };
/// QEMU's storage daemon, and losetup, which makes a block device of the file that the daemon
/// exports.
pub(crate) const QEMU: [Tool; 2] =
    [Tool { program: "qemu-storage-daemon", package: "qemu-system-common" }, LOSETUP];

/// Time limit until a peer is ready. A peer without a fault needs a small part of this time.
const READY: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// The port of tgt for node 0. It is not iSCSI's standard port, since tgt may share the host's
/// namespace, where that port may be in use.
const PORT: u16 = 13260;
/// The port of nbdkit for node 0. It is not NBD's standard port, since nbdkit may share the host's
/// namespace.
const NBD_PORT: u16 = 11809;
/// iSCSI name of the target that tgt serves.
const NAME: &str = "iqn.2026-11.io.forebay.lab:tgt";

/// Starts a tgtd that listens at an address. Its unit is a file of `bytes` bytes.
pub(crate) fn start_tgt(
    node: u8,
    address: &str,
    backing: &Path,
    bytes: u64,
    folder: &Path,
    namespace: &StageNamespace,
    stop: &AtomicBool,
) -> Result<TgtServer, Error> {
    for tool in TGT {
        tool.find().map_err(|missing| Error::Settings(missing.to_string()))?;
    }
    let plan = TgtPlan {
        portal: &format!("{address}:{}", PORT + u16::from(node)),
        number: node,
        target: NAME,
        backing,
        bytes,
        events: &folder.join(format!("tgt-{node}.events")),
    };
    let enter = |command: &mut Command| process::enter(command, namespace);
    Ok(TgtServer::start(&plan, &enter, WaitLimit { limit: READY, stop })?)
}

/// A running nbdkit with a disk in memory.
pub(crate) struct Nbdkit {
    process: LoggedProgram,
    pub url: String,
}

impl Nbdkit {
    /// Starts nbdkit with a disk of `bytes` bytes, listening at an address.
    pub fn start(
        node: u8,
        address: &str,
        bytes: u64,
        folder: &Path,
        namespace: &StageNamespace,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        let program =
            NBDKIT.find().map_err(|error: workload::Missing| Error::Settings(error.to_string()))?;
        let port = NBD_PORT + u16::from(node);
        let file = |kind: &str| folder.join(format!("nbdkit-{node}.{kind}"));
        let (ready, events) = (file("pid"), file("events"));
        let mut command = Command::new(program);
        command.args(["--foreground", "--ipaddr", address, "--port", &port.to_string()]);
        command.arg("--pidfile").arg(&ready).args(["memory", &bytes.to_string()]);
        command.stdin(Stdio::null());
        let mut process = process::start("nbdkit", &mut command, namespace, &events, Signal::TERM)?;
        // Wait until nbdkit has written its process id to this file: then it accepts connections.
        wait_for(&mut process, "nbdkit", &ready, stop)?;
        Ok(Self { process, url: format!("nbd://{address}:{port}") })
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends the process and waits until it has exited.
    pub fn end(self) -> Result<(), Error> {
        Ok(self.process.end(READY)?)
    }
}

/// Waits until a file is not empty, which shows that `process` is ready.
fn wait_for(
    process: &mut LoggedProgram,
    name: &str,
    file: &Path,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let deadline = Instant::now() + READY;
    while file.metadata().map_or(0, |about| about.len()) == 0 {
        match process.finish(WaitLimit { limit: LOOK, stop }) {
            Err(program::Error::Late { .. }) if Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
            Ok(said) => {
                let what = "ended before it was ready".to_owned();
                return Err(program::Error::Failed { name: name.to_owned(), what, said }.into());
            }
        }
    }
    Ok(())
}

/// Returns the options of QEMU that describe the disk at the URL of a node.
fn blockdev(url: &str) -> String {
    let far = if let Some(address) = url.strip_prefix("nbd://") {
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        format!("driver=nbd,server.type=inet,server.host={host},server.port={port}")
    } else {
        let mut parts = url.trim_start_matches("iscsi://").split('/');
        let mut part = || parts.next().unwrap_or_default();
        let [portal, target, lun] = [part(), part(), part()];
        format!(
            "driver=iscsi,transport=tcp,portal={portal},target={target},lun={lun},\
             initiator-name=iqn.2026-11.io.forebay.lab:qemu"
        )
    };
    format!("{far},node-name=far,cache.direct=on")
}

/// A volume that qemu-storage-daemon exports as a file, and a loop device on this file.
pub(crate) struct QemuVolumeExport {
    process: LoggedProgram,
    pub place: WorkloadLocation,
    device: Option<PathBuf>,
    events: PathBuf,
}

impl QemuVolumeExport {
    /// Logs in to a unit of a node, exports it as a file, and makes the loop device.
    pub fn start(
        number: u8,
        url: &str,
        folder: &Path,
        namespace: &StageNamespace,
        stop: &AtomicBool,
    ) -> Result<Self, Error> {
        let missing = |error: workload::Missing| Error::Settings(error.to_string());
        let daemon = QEMU[0].find().map_err(missing)?;
        let file = mounts::shown(folder, number);
        File::create(&file).map_err(Error::file("make", &file))?;
        let events = folder.join(format!("qemu-{number}.events"));
        let export = format!("fuse,id=far,node-name=far,mountpoint={},writable=on", file.display());
        let mut command = Command::new(daemon);
        command.args(["--blockdev", &blockdev(url), "--export", &export]).stdin(Stdio::null());
        let name = "qemu-storage-daemon";
        let process = process::start(name, &mut command, namespace, &events, Signal::TERM)?;
        let mut shown = Self {
            process,
            place: WorkloadLocation::Folder(file.clone()),
            device: None,
            events: events.clone(),
        };
        // The export is ready when the file has the size of the volume.
        wait_for(&mut shown.process, name, &file, stop)?;
        // Use no direct I/O of the loop device: with it, QEMU 7.2 returns wrong data, because it
        // starts a request in the buffer of another one in flight. Data is not cached without it
        // either, because QEMU asks the kernel to bypass the cache for its file.
        let mut command = losetup(&["--direct-io=off", "--find", "--show"]);
        let patience = WaitLimit { limit: READY, stop };
        let said = process::run("losetup", command.arg(&file), &None, &events, patience)?;
        let device = PathBuf::from(said.trim());
        shown.device = Some(device.clone());
        shown.place = WorkloadLocation::Device(device);
        Ok(shown)
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Detaches the loop device and ends the process.
    pub fn end(mut self) -> Result<(), Error> {
        self.detach()?;
        let Self { process, .. } = &mut self;
        // Send SIGTERM: the process then exits with code 0.
        Ok(process.ask_to_end(READY)?)
    }

    fn detach(&mut self) -> Result<(), Error> {
        let Some(device) = self.device.take() else { return Ok(()) };
        let stop = AtomicBool::new(false);
        let patience = WaitLimit { limit: READY, stop: &stop };
        let mut command = losetup(&["--detach"]);
        process::run("losetup", command.arg(device), &None, &self.events, patience).map(drop)
    }
}

impl Drop for QemuVolumeExport {
    fn drop(&mut self) {
        // Ignore errors. Ask the process to end before the drop of `process` kills it: a killed process would leave its
        // file mounted.
        let _ = self.detach();
        let _ = self.process.ask_to_end(READY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_reached_by_its_own_protocol() {
        assert_eq!(
            blockdev("iscsi://10.99.0.2:3260/iqn.x:disk/1"),
            "driver=iscsi,transport=tcp,portal=10.99.0.2:3260,target=iqn.x:disk,lun=1,\
             initiator-name=iqn.2026-11.io.forebay.lab:qemu,node-name=far,cache.direct=on"
        );
        assert_eq!(
            blockdev("nbd://10.99.0.2:11810"),
            "driver=nbd,server.type=inet,server.host=10.99.0.2,server.port=11810,node-name=far,cache.direct=on"
        );
    }
}
