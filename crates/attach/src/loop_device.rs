//! A loop device on an open file, set up and cleared by ioctl (loop(4)).

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

#[derive(Clone, Debug)]
pub struct LoopOptions {
    /// Logical block size in bytes: 512 or 4096.
    pub block_size: u32,
    pub read_only: bool,
    /// True if requests are passed to the file concurrently (direct I/O) instead of one after the other.
    pub direct: bool,
    /// True if the kernel makes devices of the partitions.
    pub partitions: bool,
}

/// A loop device that was set up. The device exists until it is cleared, even after the process that serves the file
/// has ended; then all I/O on the device fails.
///
/// This type keeps no descriptor of the device open. When the last descriptor is closed, the kernel writes back its
/// data for the device. If this process held the last descriptor and were killed, it would have to wait for requests
/// that only it could serve.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoopDevice {
    /// The N in the device name `/dev/loopN`.
    pub number: u32,
}

impl LoopDevice {
    /// Sets up a free loop device on `file`. Blocks while the kernel looks for partitions.
    ///
    /// # Errors
    /// If the loop driver cannot be used.
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
                    // Another process has taken this free loop device first: try the next one.
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
            // The kernel silently ignores the flag if it does not support direct I/O on this file.
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
                tracing::debug!(%error, "cannot change the read-ahead");
            }
            return Ok(());
        };
        self.let_go(&device)?;
        Err(problem)
    }

    #[must_use]
    pub fn path(self) -> PathBuf {
        format!("/dev/loop{}", self.number).into()
    }

    /// Changes the size of the device to the present size of the file on which it is set up.
    ///
    /// # Errors
    /// If the device is not set up any more.
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

    /// Writes back the kernel's data for the device and makes it stable. Blocks.
    ///
    /// # Errors
    /// If the volume has failed.
    pub fn flush(self) -> Result<(), Error> {
        apart(None, || self.sync(&self.open(false)?))
    }

    /// Writes back all data, and clears the device unless it is mounted or another device is built on it. If other
    /// processes have the device open, the kernel clears it when they have closed it. Blocks.
    ///
    /// # Errors
    /// [`AttachStep::LoopDevice`] with `EBUSY` if the device is used; [`AttachStep::LoopFlush`] if the volume
    /// has failed. The device is unchanged then.
    pub fn take_down(self) -> Result<(), Error> {
        apart(None, || {
            let device = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(self.path());
            let device =
                device.map_err(|error| AttachStep::LoopDevice(self.number).failed(error))?;
            self.sync(&device)?;
            self.let_go(&device)
        })
    }

    /// Clears the device as soon as it is no longer used, which may be at once. Blocks while the kernel
    /// writes back.
    ///
    /// # Errors
    /// If the device is not set up any more.
    pub fn clear(self) -> Result<(), Error> {
        apart(None, || self.let_go(&self.open(false)?))
    }

    /// Returns false only if the kernel reports that no process serves the file on which the device is set up. Does not
    /// call the volume.
    #[must_use]
    pub fn is_served(self) -> bool {
        let (tell, told) = mpsc::channel();
        // Ask on another thread: if the serving process is stopped (SIGSTOP), it does not answer, and the asking thread
        // hangs. An answer that comes too late is ignored.
        thread::spawn(move || tell.send(self.file_answers()));
        told.recv_timeout(PATIENCE).unwrap_or(true)
    }

    /// Returns true if a process serves the file on which the device is set up. The kernel asks for the attributes of
    /// the file, and the serving process answers without calling the volume.
    fn file_answers(self) -> bool {
        let Ok(device) = self.open(false) else { return true };
        let mut info = LoopInfo64::default();
        // SAFETY: the structure is laid out as the kernel's `struct loop_info64`, which it fills.
        let told = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &mut info) };
        let error = io::Error::last_os_error().raw_os_error();
        // ENOTCONN: /dev/fuse is closed. ENXIO: the device does not exist any more.
        told >= 0 || !matches!(error, Some(libc::ENOTCONN | libc::ENXIO))
    }

    /// Makes the kernel write its dirty pages of the device, so that an error of the volume is reported before the
    /// device is cleared. The data need not be on stable storage afterwards.
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

/// Writes back the data of the file system mounted on a folder, and makes it stable. Blocks. `umount(2)`
/// writes back as well, but does not report a failure.
///
/// # Errors
/// [`AttachStep::Sync`] if the volume has failed, now or since the last call.
pub fn sync(place: &Path) -> Result<(), Error> {
    let failed = |error| AttachStep::Sync(place.to_owned()).failed(error);
    apart(None, || {
        let folder = File::open(place).map_err(failed)?;
        rustix::fs::syncfs(&folder).map_err(|error| failed(error.into()))
    })
}

/// Unmounts the file system on a folder. The file system may be on a device that this process serves. Blocks
/// while the kernel writes back. With `detach` it does not block, and the unmount completes when the file
/// system is no longer used.
///
/// # Errors
/// [`AttachStep::Unmount`]. With `EBUSY`, the file system is used ([`busy_with`](crate::busy_with)).
pub fn unmount(place: &Path, detach: bool) -> Result<(), Error> {
    let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let failed = |error| AttachStep::Unmount(place.to_owned()).failed(error);
    apart(None, || rustix::mount::unmount(place, flags).map_err(failed))
}

/// Time within which a running process on this host answers a request that needs no I/O.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of attempts to set up a device if another process takes the free device first.
const ATTEMPTS: u32 = 16;

/// Read-ahead for sequential readers in sectors: two requests of maximum length, so that one request is in flight while
/// the reader uses the data of the other.
const READ_AHEAD_SECTORS: libc::c_ulong = 2 * (REQUEST_BYTES as libc::c_ulong) / 512;

// Constants from linux/loop.h and linux/fs.h.
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const BLKRASET: libc::c_ulong = 0x1262;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// The structure `loop_info64` of the kernel.
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

/// The structure `loop_config` of the kernel.
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
