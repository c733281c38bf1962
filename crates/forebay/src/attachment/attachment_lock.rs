//! Ensures that a volume is attached only once on a host. Each attached volume has a control socket, on which other
//! processes ask about it. Also clears the devices that a killed process has left of the volume.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::ErrorKind,
    path::{Path, PathBuf},
};

use attach::{FileName, HostProcess};
use control::{AttachedVolumeStatus, ControlRequest, ControlResponse, Failure};
use sha2::{Digest, Sha256};
use tokio::task::spawn_blocking;

use super::source::AttachmentSource;
use crate::control_socket::{self, ControlSocket};

/// The right to attach a volume, which only one process of the machine can have. Dropping this releases the right.
pub struct AttachmentLock {
    control: ControlSocket,
    socket: PathBuf,
    /// Lock on the volume's identity, so that the volume cannot be attached a second time under another name.
    locks: Vec<File>,
}

impl AttachmentLock {
    /// Takes the exclusive right to attach the volume that `source` names. Call this before the volume is opened.
    pub fn take(source: &AttachmentSource) -> Result<Self, Failure> {
        let socket = Path::new(FOLDER).join(format!("{}.sock", key(&source.name)));
        let control = ControlSocket::open(&socket).map_err(|failure| match ask(&socket) {
            Some(attached) => is_attached(&attached.volume, &attached),
            None => failure,
        })?;
        Ok(Self { control, socket, locks: Vec::new() })
    }

    /// Takes the exclusive right to attach the volume that is open now, by its `identity`, or by its name if it has
    /// none. Also clears the devices that a killed process has left of this volume. Returns the name of the FUSE file,
    /// which contains a key that is derived from the identity.
    pub async fn take_volume(
        &mut self,
        source: &AttachmentSource,
        identity: Option<&str>,
    ) -> Result<FileName, Failure> {
        let volume = key(identity.unwrap_or(&source.name));
        let path = Path::new(FOLDER).join(format!("volume-{volume}.lock"));
        let cannot = |error| Failure::new(format!("cannot use {}: {error}", path.display()));
        match control_socket::take(&path).map_err(cannot)? {
            Ok(lock) => self.locks.push(lock),
            Err(owner) => {
                let what = format!("the volume ({})", identity.unwrap_or(&source.name));
                let asked = spawn_blocking({
                    let owner = owner.clone();
                    move || {
                        Ok::<_, Failure>(
                            sockets()?.find(|socket| has(socket, &owner)).and_then(|it| ask(&it)),
                        )
                    }
                });
                return Err(match asked.await.map_err(Failure::new)?? {
                    Some(attached) => is_attached(&what, &attached),
                    None => Failure::new(format!("{what} is being attached by process {owner}"))
                        .remedy("wait until that process prints ready, or end it with SIGTERM"),
                });
            }
        }
        let name =
            FileName::new(&volume, HostProcess::this().map_err(Failure::new)?, source.about());
        let cleared = spawn_blocking(move || clear_leftovers(&volume)).await;
        cleared.map_err(Failure::new)??;
        Ok(name)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Answers requests on the control socket with `answer`.
    pub async fn serve<F: Future<Output = ControlResponse> + Send + 'static>(
        &mut self,
        answer: impl Fn(ControlRequest) -> F + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        self.control.serve(answer).await.map_err(Failure::new)
    }

    /// Waits until all requests have been answered.
    pub async fn finish(&self) {
        self.control.finish().await;
    }
}

/// Returns the volumes that all processes of this host have attached, each with its control socket.
pub fn all() -> Result<Vec<(PathBuf, AttachedVolumeStatus)>, Failure> {
    let found = sockets()?.filter_map(|socket| ask(&socket).map(|attached| (socket, attached)));
    Ok(found.collect())
}

fn sockets() -> Result<impl Iterator<Item = PathBuf>, Failure> {
    let files = match fs::read_dir(FOLDER) {
        Ok(files) => Some(files),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => {
            return Err(
                Failure::new(format!("cannot look into {FOLDER}: {error}")).remedy("be root")
            );
        }
    };
    let files = files.into_iter().flatten().flatten().map(|entry| entry.path());
    Ok(files.filter(|file| file.extension().is_some_and(|kind| kind == "sock")))
}

fn has(socket: &Path, process: &str) -> bool {
    fs::read_to_string(socket.with_extension("sock.lock"))
        .is_ok_and(|owner| owner.trim() == process)
}

fn ask(socket: &Path) -> Option<AttachedVolumeStatus> {
    match control_socket::ask(socket, ControlRequest::Attachment) {
        Ok(ControlResponse::Attachment(attached)) => Some(attached),
        _ => None,
    }
}

fn is_attached(what: &str, attached: &AttachedVolumeStatus) -> Failure {
    let (device, process) = (attached.device.display(), attached.process);
    Failure::new(format!("{what} is attached already, as {device} (process {process})"))
        .remedy(format!("detach it first: `forebay detach {device}`"))
}

/// Folder of the control sockets. All processes of this host use the same one, and no service manager removes it
/// together with another service.
const FOLDER: &str = "/run/forebay-attach";

/// Derives a key of 16 hexadecimal digits from a name.
fn key(name: &str) -> String {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).fold(String::new(), |mut key, byte| {
        let _ = write!(key, "{byte:02x}");
        key
    })
}

/// Clears the loop devices on files of this volume ([`FileName::volume`]) whose processes have ended, and unmounts
/// their file systems. Data that the kernel had not written back is already lost.
pub fn clear_leftovers(volume: &str) -> Result<(), Failure> {
    for left in attach::leftovers(volume) {
        let device = attach::LoopDevice { number: left.number };
        let path = device.path();
        if left.is_alive {
            return Err(Failure::new(format!(
                "the volume is attached already as {}, by process {}, which does not answer",
                path.display(),
                left.process.id
            ))
            .remedy(
                "end that process with SIGTERM, which detaches it; it may be in another container",
            ));
        }
        for place in &left.mounts {
            tracing::warn!(
                device = %path.display(), mount = %place.display(),
                "unmounting the file system that a killed process has left"
            );
            if let Err(error) = attach::unmount(place, false) {
                let users = attach::busy_with(place);
                tracing::warn!(%error, users = list(&users), "the file system is unmounted once it is no longer used");
                attach::unmount(place, true).map_err(|error| super::host::refusal(&error))?;
            }
        }
        tracing::warn!(device = %path.display(), "clearing the loop device that a killed process has left");
        match device.clear() {
            // ENXIO: the kernel has cleared the device already, when its last user closed it.
            Err(error) if error.error.raw_os_error() == Some(libc::ENXIO) => {}
            cleared => cleared.map_err(|error| super::host::refusal(&error))?,
        }
    }
    Ok(())
}

/// Formats the users of a device for messages.
pub fn list(users: &[attach::DeviceUser]) -> String {
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
