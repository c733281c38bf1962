//! A loop device on an open file, set up and taken down by ioctl (loop(4)).

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::mount::UnmountFlags;

use crate::{AttachStep, Error, fuse_requests::REQUEST_BYTES, unshared_files::apart};

/// How a loop device is set up.
#[derive(Clone, Debug)]
pub struct LoopOptions {
    /// Bytes of a logical block: 512 or 4096.
    pub block_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether requests go to the file side by side, and not one after the other.
    pub direct: bool,
    /// Whether partitions on it become devices, too.
    pub partitions: bool,
}

/// A loop device that was set up. It stays until it is cleared, also when the process ends: then all
/// that is asked of it is an I/O error.
///
/// No descriptor of it is kept. The last one to be closed writes back what the kernel keeps of the
/// device; if that were ours, a process that is killed would wait for what only it could serve.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoopDevice {
    /// N of `/dev/loopN`.
    pub number: u32,
}

impl LoopDevice {
    /// Takes a free loop device and sets it up on `file`. Blocks while the kernel looks for
    /// partitions.
    ///
    /// # Errors
    /// What of the loop driver is missing.
    pub fn set_up(file: &File, options: &LoopOptions) -> Result<Self, Error> {
        apart(Some(file.as_raw_fd()), || {
            let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
            let control = control.map_err(|error| AttachStep::LoopControl.failed(error))?;
            let mut left = ATTEMPTS;
            loop {
                // SAFETY: LOOP_CTL_GET_FREE takes no argument, and the descriptor is open.
                let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
                let number = u32::try_from(number)
                    .map_err(|_| AttachStep::LoopControl.failed(io::Error::last_os_error()))?;
                left -= 1;
                let device = Self { number };
                match device.configure(file, options) {
                    // Somebody else was faster.
                    Err(error) if error.error.raw_os_error() == Some(libc::EBUSY) && left > 0 => {}
                    Err(error) => return Err(error),
                    Ok(()) => return Ok(device),
                }
            }
        })
    }

    fn configure(self, file: &File, options: &LoopOptions) -> Result<(), Error> {
        let device = self.open(!options.read_only)?;
        let mut flags = 0;
        for (wanted, flag) in [
            (options.read_only, LO_FLAGS_READ_ONLY),
            (options.direct, LO_FLAGS_DIRECT_IO),
            (options.partitions, LO_FLAGS_PARTSCAN),
        ] {
            flags |= if wanted { flag } else { 0 };
        }
        let config = LoopConfig {
            fd: file.as_raw_fd() as u32,
            block_size: options.block_size,
            info: LoopInfo64 { flags, ..LoopInfo64::default() },
            reserved: [0; 8],
        };
        let failed = || AttachStep::LoopSetUp(self.number).failed(io::Error::last_os_error());
        // SAFETY: the structure is laid out as the kernel's `struct loop_config` and outlives the
        // call; both descriptors are open.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) } < 0 {
            return Err(failed());
        }
        let mut info = LoopInfo64::default();
        // SAFETY: the structure is laid out as the kernel's `struct loop_info64`, which it fills.
        let told = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &mut info) };
        let problem = if told < 0 {
            Some(failed())
        } else if options.direct && info.flags & LO_FLAGS_DIRECT_IO == 0 {
            // The kernel drops the flag in silence where it cannot do it.
            let error = io::Error::other("the kernel cannot do direct I/O on the file");
            Some(AttachStep::LoopSetUp(self.number).failed(error))
        } else {
            None
        };
        let Some(problem) = problem else {
            // SAFETY: BLKRASET takes a number of sectors as its argument.
            let set = unsafe { libc::ioctl(device.as_raw_fd(), BLKRASET, READ_AHEAD_SECTORS) };
            if set < 0 {
                let error = io::Error::last_os_error();
                tracing::debug!(%error, "the read-ahead stays as it is");
            }
            return Ok(());
        };
        self.let_go(&device)?;
        Err(problem)
    }

    /// `/dev/loopN`.
    #[must_use]
    pub fn path(self) -> PathBuf {
        format!("/dev/loop{}", self.number).into()
    }

    /// Takes the size that the file has by now.
    ///
    /// # Errors
    /// It is not set up any more.
    pub fn resize(self) -> Result<(), Error> {
        apart(None, || {
            let device = self.open(false)?;
            // SAFETY: LOOP_SET_CAPACITY takes no argument.
            if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_CAPACITY) } < 0 {
                return Err(AttachStep::LoopSetUp(self.number).failed(io::Error::last_os_error()));
            }
            Ok(())
        })
    }

    /// Writes back what the kernel keeps of it, and makes it stable. Blocks.
    ///
    /// # Errors
    /// The volume failed.
    pub fn flush(self) -> Result<(), Error> {
        apart(None, || self.sync(&self.open(false)?))
    }

    /// Takes it away if nobody has mounted it or built on it, and nobody does meanwhile, when all
    /// that was written is stable. Who has it open otherwise keeps it until they close it. Blocks.
    ///
    /// # Errors
    /// [`AttachStep::LoopDevice`] with `EBUSY`: it is used; [`AttachStep::LoopFlush`]: the volume failed.
    /// Nothing has changed then.
    pub fn take_down(self) -> Result<(), Error> {
        apart(None, || {
            let device = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.path());
            let device =
                device.map_err(|error| AttachStep::LoopDevice(self.number).failed(error))?;
            self.sync(&device)?;
            self.let_go(&device)
        })
    }

    /// Takes it away as soon as nobody uses it any more, which may be at once. Blocks while the
    /// kernel writes back.
    ///
    /// # Errors
    /// It is not set up any more.
    pub fn clear(self) -> Result<(), Error> {
        apart(None, || self.let_go(&self.open(false)?))
    }

    /// Whether somebody serves the file below it: false only if the kernel says that nobody does any more.
    /// The volume is not asked.
    #[must_use]
    pub fn is_served(self) -> bool {
        let (tell, told) = mpsc::channel();
        // A process that was stopped does not answer, and who asks it cannot go on. Nobody may listen.
        thread::spawn(move || tell.send(self.file_answers()));
        told.recv_timeout(PATIENCE).unwrap_or(true)
    }

    /// The kernel asks the file for its attributes, which the process tells without the volume.
    fn file_answers(self) -> bool {
        let Ok(device) = self.open(false) else { return true };
        let mut info = LoopInfo64::default();
        // SAFETY: the structure is laid out as the kernel's `struct loop_info64`, which it fills.
        let told = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &mut info) };
        let error = io::Error::last_os_error().raw_os_error();
        // ENOTCONN: /dev/fuse is closed; ENXIO: the device is no more.
        told >= 0 || !matches!(error, Some(libc::ENOTCONN | libc::ENXIO))
    }

    /// Makes the kernel write its dirty pages of the device, so that an error of the volume is reported before the
    /// device is gone. Whether the volume then has the data on stable storage is its own matter.
    fn sync(self, device: &File) -> Result<(), Error> {
        device.sync_all().map_err(|error| AttachStep::LoopFlush(self.number).failed(error))
    }

    fn let_go(self, device: &File) -> Result<(), Error> {
        // SAFETY: LOOP_CLR_FD takes no argument.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) } < 0 {
            return Err(AttachStep::LoopSetUp(self.number).failed(io::Error::last_os_error()));
        }
        Ok(())
    }

    fn open(self, write: bool) -> Result<File, Error> {
        let device = OpenOptions::new().read(true).write(write).open(self.path());
        device.map_err(|error| AttachStep::LoopDevice(self.number).failed(error))
    }
}

/// Writes back what the kernel keeps of the file system mounted on a folder, and makes it stable. Blocks.
/// `umount(2)` does that, too, and does not tell whether it succeeded.
///
/// # Errors
/// [`AttachStep::Sync`]: the volume failed, now or since this was asked last.
pub fn sync(place: &Path) -> Result<(), Error> {
    let failed = |error| AttachStep::Sync(place.to_owned()).failed(error);
    apart(None, || {
        let folder = File::open(place).map_err(failed)?;
        rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))
    })
}

/// Unmounts what is mounted on a folder, which may wait for a device that this process serves. Blocks
/// while the kernel writes back; with `detach` it does not, and is done when nobody uses it any more.
///
/// # Errors
/// [`AttachStep::Unmount`]; with `EBUSY`, somebody uses it ([`busy_with`](crate::busy_with)).
pub fn unmount(place: &Path, detach: bool) -> Result<(), Error> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let failed = |error| AttachStep::Unmount(place.to_owned()).failed(error);
    apart(None, || rustix::mount::unmount(place, flags).map_err(failed))
}

/// For a process on this host to answer that has nothing else to do for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// So many others may be faster in a row.
const ATTEMPTS: u32 = 16;

/// What the kernel reads ahead of who reads in order: two of the largest requests, so that one is on
/// its way while the other is used.
const READ_AHEAD_SECTORS: libc::c_ulong = 2 * (REQUEST_BYTES as libc::c_ulong) / 512;

// linux/loop.h, linux/fs.h
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const BLKRASET: libc::c_ulong = 0x1262;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Default for LoopInfo64 {
    fn default() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
