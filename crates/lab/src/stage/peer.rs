//! Programs of others in the places of ours: tgt or nbdkit as the node, qemu-storage-daemon as the host's initiator.

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

/// Its daemon and the tool that tells it what to serve.
pub(crate) const TGT: [Tool; 2] =
    [Tool { program: "tgtd", package: "tgt" }, Tool { program: "tgtadm", package: "tgt" }];
/// With its plugin `memory`, which is in the same package.
pub(crate) const NBDKIT: Tool = Tool { program: "nbdkit", package: "nbdkit" };
/// QEMU's, and what makes a block device of the file that it shows.
pub(crate) const QEMU: [Tool; 2] =
    [Tool { program: "qemu-storage-daemon", package: "qemu-system-common" }, LOSETUP];

/// Either is ready in a fraction of that, or never.
const READY: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(20);

/// The port of tgt, alone in its namespace. Where it shares the host's, this one is not iSCSI's own.
const PORT: u16 = 13260;
/// That of nbdkit; for the same reason not NBD's own.
const NBD_PORT: u16 = 11809;
/// The target's name.
const NAME: &str = "iqn.2026-11.io.forebay.lab:tgt";

/// Starts a tgtd with a unit over a file of so many bytes, listening at an address.
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

/// An nbdkit with a disk in its memory.
pub(crate) struct Nbdkit {
    process: LoggedProgram,
    pub url: String,
}

impl Nbdkit {
    /// Starts it with a disk of so many bytes, listening at an address.
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
        // It writes its number when it takes connections.
        wait_for(&mut process, "nbdkit", &ready, stop)?;
        Ok(Self { process, url: format!("nbd://{address}:{port}") })
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Ends it.
    pub fn end(self) -> Result<(), Error> {
        Ok(self.process.end(READY)?)
    }
}

/// Waits until there is something in a file that a program fills when it is ready.
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

/// What QEMU calls the disk behind a URL of a node's.
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

/// A volume that qemu-storage-daemon shows as a file, and a loop device on that.
pub(crate) struct QemuVolumeExport {
    process: LoggedProgram,
    pub place: WorkloadLocation,
    device: Option<PathBuf>,
    events: PathBuf,
}

impl QemuVolumeExport {
    /// Logs in to a URL of ours and shows it.
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
        // It is there when the file has the volume's size.
        wait_for(&mut shown.process, name, &file, stop)?;
        // With direct I/O of the loop device QEMU 7.2 gives back wrong data: a request is begun in the buffer of
        // one that is under way. Without it nothing is kept in memory either: QEMU has its file opened for that.
        let mut command = losetup(&["--direct-io=off", "--find", "--show"]);
        let patience = WaitLimit { limit: READY, stop };
        let said = process::run("losetup", command.arg(&file), &None, &events, patience)?;
        let device = PathBuf::from(said.trim());
        shown.device = Some(device.clone());
        shown.place = WorkloadLocation::Device(device);
        Ok(shown)
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Takes it away.
    pub fn end(mut self) -> Result<(), Error> {
        self.detach()?;
        let Self { process, .. } = &mut self;
        // It ends well at SIGTERM.
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
        // What goes wrong here, goes wrong with the process killed after it, too. Killed at once it would leave its file
        // mounted.
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
