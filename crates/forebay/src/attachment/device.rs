//! The device of an attached volume: creates it, and detaches it without losing written data.

use std::{path::Path, sync::Arc, time::Duration};

use attach::{
    DeviceUser, FileName, LoopDevice, LoopOptions, LostWrites, ServedFile, VolumeContent,
    VolumeFile,
};
use control::{AttachedVolumeStatus, CacheControlCommand, CacheControlStatus, Failure, UnitName};
use stack::OpenedStack;
use tokio::{
    task::spawn_blocking,
    time::{Instant, sleep, timeout},
};
use volume::{OngoingCondition, Stack};

use super::{
    attachment_lock::list, control_answers::Manner, file_system, host::refusal,
    source::AttachmentSource,
};
use crate::cli::Attach;

/// A loop device on a file over a volume, and the file system on it if this process has mounted one.
pub struct AttachedDevice {
    device: LoopDevice,
    /// Name of the FUSE file below the loop device; contains the key of the volume.
    name: FileName,
    served: ServedFile,
    volume: Stack,
    opened: Arc<OpenedStack>,
    /// Name of the attached unit, as users write it on the command line.
    unit: UnitName,
    attached: AttachedVolumeStatus,
    /// True once the kernel has cleared the device.
    is_gone: bool,
    /// True once the mounted file system has become read-only after an error.
    has_stopped: bool,
    /// The last reported reason why the device cannot be detached.
    said: Option<String>,
}

impl AttachedDevice {
    /// Creates the block device, makes a file system on it if requested, and mounts it.
    pub async fn open(
        args: &Attach,
        source: &AttachmentSource,
        name: FileName,
        opened: Arc<OpenedStack>,
    ) -> Result<Self, Failure> {
        let volume = opened.top.clone();
        let plan = file_system::plan(args, &*volume).await?;
        let geometry = volume.geometry();
        let file = attach::ServedFileOptions { name: name.clone(), patience: source.patience() };
        let options = LoopOptions {
            block_size: geometry.block_size,
            read_only: geometry.read_only,
            direct: !args.no_direct_io,
            partitions: args.partitions,
        };
        let below = volume.clone();
        let (device, served) = apart(move || {
            let file = VolumeFile::open(below, file)?;
            let device = LoopDevice::set_up(file.file(), &options)?;
            Ok((device, file.into_served()))
        })
        .await?;
        let attached = AttachedVolumeStatus {
            device: device.path(),
            volume: source.name.clone(),
            bytes: geometry.bytes(),
            block_size: geometry.block_size,
            read_only: geometry.read_only,
            direct_io: !args.no_direct_io,
            mount: None,
            process: std::process::id(),
        };
        let mut device = Self {
            device,
            name,
            served,
            volume,
            opened,
            unit: source.unit_name(),
            attached,
            is_gone: false,
            has_stopped: false,
            said: None,
        };
        if let Err(failure) = device.fill(args, plan).await {
            device.give_up().await;
            return Err(failure);
        }
        Ok(device)
    }

    async fn fill(
        &mut self,
        args: &Attach,
        plan: file_system::FileSystemPlan,
    ) -> Result<(), Failure> {
        if let Some(kind) = &plan.make {
            file_system::make(kind, &self.attached.device).await?;
        }
        if let Some(folder) = &args.mount {
            let folder = folder.canonicalize().map_err(Failure::new)?;
            // A new file system has replaced the former content.
            let found = if plan.make.is_some() { VolumeContent::Nothing } else { plan.found };
            file_system::mount(&self.attached.device, args, &folder, found).await?;
            self.attached.mount = Some(folder);
            self.warn_if_hidden().await?;
        }
        Ok(())
    }

    /// Warns if other programs do not see the mount. `ip netns exec`, for example, starts a program in a mount
    /// namespace of its own.
    async fn warn_if_hidden(&self) -> Result<(), Failure> {
        let number = self.device.number;
        if let Some(mount) = &self.attached.mount
            && apart(move || Ok(attach::is_hidden(number))).await?
        {
            let process = std::process::id();
            let remedy = format!(
                "start the programs that need it by `nsenter --mount=/proc/{process}/ns/mnt`; to mount it for all, \
                 start `forebay attach` by `nsenter --net=/run/netns/NAME` instead of `ip netns exec` or \
                 `forebay lab wan exec`"
            );
            tracing::warn!(
                mount = %mount.display(), remedy,
                "the file system is mounted in the mount namespace of this process only: other programs find nothing in \
                 the folder"
            );
        }
        Ok(())
    }

    /// Returns the state of the device for answers to other processes.
    pub fn attached(&self) -> &AttachedVolumeStatus {
        &self.attached
    }

    /// Waits until no process has the file open, or the kernel has closed the FUSE connection.
    pub async fn ended(&mut self) {
        self.served.ended().await;
    }

    /// Grows the device to the present size of the volume.
    pub async fn follow(&mut self) {
        self.volume.extensions().refresh();
        let (device, bytes) = (self.device, self.volume.geometry().bytes());
        if bytes <= self.attached.bytes {
            return;
        }
        match apart(move || device.resize()).await {
            Ok(()) => {
                tracing::info!(bytes, "the volume has grown, and the device with it");
                self.attached.bytes = bytes;
            }
            Err(failure) => self.say_once(&failure),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Prints a failure, unless its text equals the one that was printed last.
    pub fn say_once(&mut self, failure: &Failure) {
        let text = failure.to_string();
        if self.said.as_ref() != Some(&text) {
            tracing::warn!("{text}");
            self.said = Some(text);
        }
    }

    /// Detaches the device by force after the attachment has failed. The caller returns that failure, so a failure of
    /// the detach is only logged.
    pub async fn give_up(&mut self) {
        if let Err(failure) = self.detach(Manner::Force).await {
            tracing::warn!("{failure}");
        }
    }

    /// Detaches the device once everything that was written to it is stable.
    ///
    /// - If the device is in use, or the last writes do not become stable, it stays attached, and the error names the
    ///   reason.
    /// - By force, it is detached in any case.
    /// - If it was detached ([`Self::is_gone`]), an error says which data is not stable.
    ///
    /// With [`Manner::Drained`], the cache first has to destage its dirty data. If that takes more than a moment, the
    /// device stays attached and the state of the cache is returned. Call this method again to continue.
    pub async fn detach(&mut self, manner: Manner) -> Result<Option<CacheControlStatus>, Failure> {
        if manner == Manner::Force {
            return self.tear_off().await.map(|()| None);
        }
        let number = self.device.number;
        let ours = self.attached.mount.clone();
        let users = move || {
            let is_ours = |user: &DeviceUser| matches!((user, &ours), (DeviceUser::Mount(place), Some(mount)) if place == mount);
            let users = attach::users(number);
            Ok(users.into_iter().filter(|user| !is_ours(user)).collect::<Vec<_>>())
        };
        let users = apart(users).await?;
        if !users.is_empty() {
            return Err(self.in_use(&users));
        }
        if let Some(folder) = self.attached.mount.clone() {
            if let Some(standing) = self.leave_mount(&folder, manner).await? {
                return Ok(Some(standing));
            }
            self.attached.mount = None;
        }
        let device = self.device;
        if manner == Manner::Drained {
            // Write back what the kernel still holds for the device, so that the drain includes it. If the device was
            // not mounted, this may be all of the data.
            if let Err(error) = apart(move || Ok(device.flush())).await? {
                return Err(self.not_stable(&error).await);
            }
            if let Some(standing) = self.drain().await? {
                return Ok(Some(standing));
            }
        }
        let users = move || attach::users(device.number);
        match self.once_unused(move || device.take_down(), users).await? {
            Ok(()) => {}
            Err(error) if matches!(error.part, attach::AttachStep::LoopFlush(_)) => {
                return Err(self.not_stable(&error).await);
            }
            Err(error) => return Err(refusal(&error)),
        }
        self.is_gone = true;
        self.last_user().await;
        let flushed = self.volume.flush().await;
        let problem = match flushed {
            Err(error) => Some(format!("its last flush failed: {error}")),
            Ok(()) => {
                self.has_stopped.then(|| "its file system had stopped after an error".to_owned())
            }
        };
        self.outcome(problem).map(|()| None)
    }

    /// Writes back the file system in `folder`, drains the cache if requested, and unmounts. If the cache is not
    /// drained yet, returns its state and leaves the file system mounted.
    async fn leave_mount(
        &mut self,
        folder: &Path,
        manner: Manner,
    ) -> Result<Option<CacheControlStatus>, Failure> {
        // A detach with `--drain` calls this repeatedly, so only an ordinary detach writes the event.
        if manner == Manner::Usual {
            tracing::info!(mount = %folder.display(), "writing back and unmounting");
        }
        let place = folder.to_owned();
        // Write back before the unmount: data that cannot be written back is lost once the file system is unmounted.
        match apart(move || Ok(attach::sync(&place))).await? {
            Ok(()) => {}
            // The file system has stopped writing after an error, so it can only be unmounted.
            Err(error) if error.error.raw_os_error() == Some(libc::EROFS) => {
                self.has_stopped = true;
            }
            Err(error) => return Err(self.not_stable(&error).await),
        }
        // Drain while the file system is still mounted: if the user interrupts the drain, nothing has changed.
        if manner == Manner::Drained
            && let Some(standing) = self.drain().await?
        {
            return Ok(Some(standing));
        }
        if manner == Manner::Drained {
            tracing::info!(mount = %folder.display(), "the cache is drained; unmounting");
        }
        self.unmount(folder).await?;
        Ok(None)
    }

    /// Destages for a short time. Returns the state of the cache if dirty data is left.
    async fn drain(&self) -> Result<Option<CacheControlStatus>, Failure> {
        if self.opened.cache().is_none() {
            return Ok(None);
        }
        let device = self.attached.device.display();
        let standing =
            self.opened.order(&self.unit, CacheControlCommand::Drain).await.map_err(|failure| {
                let message = format!(
                    "{device} is still attached: its cache is not drained: {}",
                    failure.message
                );
                Failure { message, ..failure }
            })?;
        Ok((!standing.done).then_some(standing))
    }

    /// Returns the failure that some written data is not stable, with the cause.
    async fn not_stable(&self, error: &attach::Error) -> Failure {
        // The kernel reports only an I/O error; a flush of the volume reports the cause.
        let flushed = timeout(RUSH, self.volume.flush()).await;
        let cause = flushed.unwrap_or(Err(NO_ANSWER)).err();
        let mut message = format!("the last writes are not stable: {error}");
        for more in cause.as_ref().map(ToString::to_string).into_iter().chain(self.lost()) {
            message.push_str("; ");
            message.push_str(&more);
        }
        let again = match self.served.lost() {
            Some(_) => "let the application write the data again, and detach again",
            None => "detach again",
        };
        let remedy = match way_out(cause.as_ref()) {
            Some(first) => format!("{first}, {again}; --force discards the data"),
            None => format!("{again}; --force discards the data"),
        };
        Failure::new(message).remedy(remedy)
    }

    /// Describes the failed writes whose data the kernel has discarded; `None` if there are none.
    fn lost(&self) -> Option<String> {
        let LostWrites { writes, since } = self.served.lost()?;
        let since = jiff::Timestamp::try_from(since).unwrap_or_default();
        let since = since.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S%:z");
        Some(format!(
            "{writes} writes failed with I/O errors since {since}: their data is not on the \
             volume"
        ))
    }

    /// Returns the result of a detach: an error if some data is not stable.
    fn outcome(&self, problem: Option<String>) -> Result<(), Failure> {
        let problems: Vec<String> = problem.into_iter().chain(self.lost()).collect();
        if problems.is_empty() {
            return Ok(());
        }
        let device = self.attached.device.display();
        Err(Failure::new(format!("{device} is detached; {}", problems.join("; "))).remedy(
            "check the volume (a file system with its fsck), and write the missing data again",
        ))
    }

    /// Waits until no process has the device open. A process may have opened it just before it was cleared.
    async fn last_user(&mut self) {
        let mut is_said = false;
        while timeout(LOOK_AGAIN, self.served.ended()).await.is_err() {
            if !is_said {
                let number = self.device.number;
                let users = apart(move || Ok(attach::users(number))).await.unwrap_or_default();
                tracing::warn!(
                    users = list(&users),
                    remedy =
                        "end the processes that the event names, or wait until they have ended",
                    "waiting for the users of the device"
                );
                is_said = true;
            }
        }
    }

    async fn unmount(&self, folder: &Path) -> Result<(), Failure> {
        let (place, busy) = (folder.to_owned(), folder.to_owned());
        let unmount = move || attach::unmount(&place, false);
        let done = self.once_unused(unmount, move || attach::busy_with(&busy)).await?;
        let Err(error) = done else { return Ok(()) };
        match error.error.raw_os_error() {
            // EINVAL: another process has unmounted the file system already.
            Some(libc::EINVAL) => Ok(()),
            _ => Err(refusal(&error)),
        }
    }

    /// Performs `work`, and repeats it while it fails with EBUSY and no user can be seen, at most for
    /// [`UNSEEN_FOR`]. A process that has just ended is such a user: the kernel releases the files of its asynchronous I/O
    /// and the mounts of its namespace a little later. Fails if the device stays in use.
    async fn once_unused(
        &self,
        work: impl Fn() -> Result<(), attach::Error> + Clone + Send + 'static,
        users: impl Fn() -> Vec<DeviceUser> + Clone + Send + 'static,
    ) -> Result<Result<(), attach::Error>, Failure> {
        let begun = Instant::now();
        let mut waits = OngoingCondition::default();
        loop {
            let (work, users) = (work.clone(), users.clone());
            let done = apart(move || Ok(work())).await?;
            let is_busy = |error: &attach::Error| error.error.raw_os_error() == Some(libc::EBUSY);
            if !done.as_ref().is_err_and(is_busy) {
                return Ok(done);
            }
            let users = apart(move || Ok(users())).await?;
            if !users.is_empty() || begun.elapsed() >= UNSEEN_FOR {
                return Err(self.in_use(&users));
            }
            if waits.turn(true).is_some() {
                tracing::info!("waiting for users of the device that cannot be seen");
            }
            sleep(UNSEEN_AGAIN).await;
        }
    }

    fn in_use(&self, users: &[DeviceUser]) -> Failure {
        let device = self.attached.device.display();
        let named = if users.is_empty() { "its users are unknown".to_owned() } else { list(users) };
        Failure::new(format!("{device} is in use: {named}")).remedy(leave(users))
    }

    /// Writes back the data within a time limit, and detaches the device even if it is in use.
    async fn tear_off(&mut self) -> Result<(), Failure> {
        let mut is_saved = true;
        // A detach that was interrupted may have cleared the device already. Its number may then belong to a device of
        // another process, which must not be touched.
        self.is_gone |= attach::backing(self.device.number).as_ref() != Some(&self.name);
        if !self.is_gone {
            let device = self.device;
            is_saved &= in_time(apart(move || write_back(device))).await;
            if let Some(folder) = self.attached.mount.take() {
                let unmounted = timeout(RUSH, apart(move || attach::unmount(&folder, true))).await;
                tracing::debug!(?unmounted, "unmounted");
            }
        }
        if timeout(RUSH, self.served.refuse()).await.is_err() {
            tracing::warn!(
                remedy = "check its target, attach the volume again, and check its file system with \
                 fsck",
                "the volume does not answer"
            );
            is_saved = false;
        }
        if !self.is_gone {
            self.let_go().await;
            self.is_gone = true;
        }
        is_saved &= in_time(self.volume.flush()).await;
        self.outcome((!is_saved).then(|| "the last writes may be lost".to_owned()))
    }

    /// Requests that the kernel clears the loop device when its last user closes it.
    pub async fn let_go(&self) {
        let device = self.device;
        let cleared = timeout(RUSH, apart(move || device.clear())).await;
        tracing::debug!(?cleared, "the loop device is released");
    }
}

/// Returns the remedy for the cause of a failed flush. Once the user has applied it, the volume accepts a flush again.
fn way_out(cause: Option<&volume::Error>) -> Option<&'static str> {
    match cause? {
        volume::Error::NoSpace => Some("free space on the far volume"),
        volume::Error::Fenced(_) => {
            Some("give this host the claim on the volume again, if it is to use it")
        }
        error if error.may_pass() => Some("make the far volume available again"),
        _ => Some("remove the cause of that error"),
    }
}

/// Returns instructions for the operator: how to make these users release the device.
fn leave(users: &[DeviceUser]) -> String {
    if users.is_empty() {
        return "look for mount namespaces that have it with `lsns -t mnt`, and end the programs \
                in them; then detach again; --force detaches it nevertheless"
            .to_owned();
    }
    let commands: Vec<String> = users.iter().filter_map(unmount_elsewhere).collect();
    let mut first = match &commands[..] {
        [] => String::new(),
        commands => format!("run `{}`", commands.join("`, `")),
    };
    if commands.len() < users.len() {
        let joint = if first.is_empty() { "" } else { "; " };
        first += &format!("{joint}unmount it, or end the programs that use it");
    }
    format!("{first}, and detach again; --force detaches it nevertheless")
}

/// Returns the command that unmounts a file system in another mount namespace; `None` if this user of the device is not
/// such a mount.
fn unmount_elsewhere(user: &DeviceUser) -> Option<String> {
    let DeviceUser::MountElsewhere { place, id, .. } = user else { return None };
    let place = shell_word(&place.display().to_string());
    // The path is the one that the process sees, which may be inside a chroot.
    Some(format!("nsenter --mount=/proc/{id}/ns/mnt --root=/proc/{id}/root umount {place}"))
}

/// Quotes `name` so that a shell reads it as one word.
pub fn shell_word(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    match name.chars().all(is_plain) {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', r"'\''")),
    }
}

/// Writes back the kernel's data of the file systems on the device and of the device itself.
fn write_back(device: LoopDevice) -> Result<(), attach::Error> {
    let mounts = attach::users(device.number).into_iter().filter_map(|user| match user {
        DeviceUser::Mount(place) => Some(place),
        _ => None,
    });
    // Continue after a file system that cannot be synced, so that the others are written back.
    let mut synced = Ok(());
    for place in mounts {
        synced = synced.and(attach::sync(&place));
    }
    synced.and(device.flush())
}

/// Remedy if the last writes may be lost.
const CHECK: &str =
    "attach the volume again, check its file system with fsck, and write the missing data again";

/// Returns true if the work succeeds within [`RUSH`]. Otherwise warns that the last writes may be lost.
async fn in_time<E: std::fmt::Display>(work: impl Future<Output = Result<(), E>>) -> bool {
    match timeout(RUSH, work).await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::warn!(%error, remedy = CHECK, "writing back failed: the last writes may be lost");
            false
        }
        Err(_) => {
            tracing::warn!(remedy = CHECK, "writing back timed out: the last writes may be lost");
            false
        }
    }
}

/// Runs `work` on a thread that may block.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, attach::Error> + Send + 'static,
) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(Failure::new)?.map_err(|error| refusal(&error))
}

const NO_ANSWER: volume::Error = volume::Error::Busy("no answer to a flush within 10 s");

/// Time that a detach waits for users that cannot be seen. The kernel needs some milliseconds for them, more on a machine
/// under load.
const UNSEEN_FOR: Duration = Duration::from_secs(5);
/// Pause between two attempts to detach a device whose users cannot be seen.
const UNSEEN_AGAIN: Duration = Duration::from_millis(50);

/// Interval between two checks for users that keep a detached device open.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Time limit of each step when the process must end soon: systemd waits 90 s before it kills a service.
const RUSH: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_of_a_device_has_a_remedy() {
        let there = |place: &str, id| DeviceUser::MountElsewhere {
            place: place.into(),
            id,
            name: "sleep".to_owned(),
        };
        let command = "nsenter --mount=/proc/7/ns/mnt --root=/proc/7/root umount";
        assert_eq!(
            leave(&[there("/srv/data", 7)]),
            format!(
                "run `{command} /srv/data`, and detach again; --force detaches it nevertheless"
            )
        );
        // The folder name must be quoted, so that it cannot become part of the command.
        let odd = leave(&[there("/a b';reboot", 7), DeviceUser::Swap]);
        assert!(
            odd.starts_with(&format!(r"run `{command} '/a b'\'';reboot'`; unmount it, or end")),
            "{odd}"
        );
        assert!(
            leave(&[DeviceUser::Swap])
                .starts_with("unmount it, or end the programs that use it, and detach again")
        );
        assert!(leave(&[]).contains("`lsns -t mnt`"), "a mount namespace without a process");
    }

    #[test]
    fn each_error_of_a_last_flush_has_a_remedy_of_its_own() {
        use volume::Error;
        let first = |error: Error| way_out(Some(&error)).expect("there is one");
        assert!(first(Error::Away("link".into())).contains("make the far volume available again"));
        for other in [Error::NoSpace, Error::Device("the log is lost".into()), Error::ReadOnly] {
            assert!(!first(other).contains("make the far volume available again"));
        }
        assert_eq!(way_out(None), None, "it takes flushes again");
    }
}
