//! A FUSE file system with one file, whose content is that of a volume.
//!
//! The data of a request is copied out of the read buffer before the next request is read into it. Only the call that
//! passes the data to the volume uses this copy. Requests may be answered in any order.

use std::{
    ffi::OsStr,
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, SessionACL, WriteFlags,
};
use rustix::{
    fs::{Mode, OFlags},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags},
};
use tokio::{runtime::Handle, sync::oneshot};
use volume::{Data, Stack};

use crate::{
    AttachStep, Error,
    file_name::FileName,
    fuse_requests::{REQUEST_BYTES, Requests, SIDE_BY_SIDE},
    lost_writes::LostWrites,
};

#[derive(Clone, Debug)]
pub struct ServedFileOptions {
    /// The name of the file. The kernel shows it as the file below the loop device.
    pub name: FileName,
    /// Time for which a call is repeated while the volume is busy.
    pub patience: Duration,
}

/// An open file whose content is that of a volume. This process serves the file as long as any descriptor of it is
/// open, for example that of a loop device.
pub struct VolumeFile {
    file: File,
    requests: Arc<Requests>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl VolumeFile {
    /// Serves `volume` as a file and opens it. Blocks until the file is open: call this within a runtime, on
    /// a thread that may block.
    ///
    /// # Errors
    /// If FUSE cannot be used.
    pub fn open(volume: Stack, options: ServedFileOptions) -> Result<Self, Error> {
        let read_only = volume.geometry().read_only;
        let requests = Requests::new(volume, options.patience);
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| AttachStep::Fuse.failed(error))?;
        let root = mount(&device).map_err(|error| AttachStep::FuseMount.failed(error))?;
        let name = options.name.to_string();
        let system = OneFile {
            requests: Arc::clone(&requests),
            name: name.clone(),
            runtime: Handle::current(),
            since: SystemTime::now(),
        };
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        // The file system is mounted nowhere, so only holders of the open file can use it.
        let session = Session::from_fd(system, device.into(), SessionACL::All, config);
        let session = session.map_err(|error| AttachStep::FuseMount.failed(error))?;
        let (end, ended) = oneshot::channel();
        let serve = move || {
            // Ignore a failed send: the receiver may have been dropped because the process is about to end.
            let _ = end.send(session.run());
        };
        let thread = std::thread::Builder::new().name("fuse".into()).spawn(serve);
        thread.map_err(|error| AttachStep::Thread.failed(error))?;
        let flags = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let file = rustix::fs::openat(&root, &name, flags | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|error| AttachStep::File.failed(error))?;
        Ok(Self { file: file.into(), requests, ended })
    }

    /// Returns the open file, for a loop device.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Closes the descriptor of this value. The returned handle waits until the file is no longer served.
    #[must_use]
    pub fn into_served(self) -> ServedFile {
        ServedFile { requests: self.requests, ended: Some(self.ended) }
    }
}

/// Serves a file that another descriptor keeps open, such as that of a loop device. The descriptor of [`VolumeFile`] is
/// closed.
pub struct ServedFile {
    requests: Arc<Requests>,
    /// Receives the result once the file is no longer served.
    ended: Option<oneshot::Receiver<io::Result<()>>>,
}

impl ServedFile {
    /// Waits until all descriptors of the file are closed, or the kernel has ended the FUSE connection.
    pub async fn ended(&mut self) {
        let Some(ended) = &mut self.ended else { return };
        let how = ended.await;
        self.ended = None;
        if let Ok(Err(error)) = how {
            tracing::error!(
                %error,
                remedy = "detach the device (`forebay detach --force DEVICE`), attach the volume \
                 again, and check its file system with fsck",
                "serving the file over the volume has failed"
            );
        }
    }

    /// Returns the number of writes and discards that have failed since the file was opened, and the time of the first
    /// one; `None` if none has failed. The data of a failed write is not on the volume, even if later write-backs
    /// succeed.
    #[must_use]
    pub fn lost(&self) -> Option<LostWrites> {
        self.requests.lost()
    }

    /// Stops serving the file: every further request gets an I/O error. Waits for the requests in progress.
    pub async fn refuse(&self) {
        self.requests.close().await;
    }
}

/// Number of threads that take requests from the kernel. These threads only copy the data of each request; tasks of the
/// async runtime then call the volume.
const THREADS: usize = 2;

/// Makes a FUSE file system without a mount point.
fn mount(device: &File) -> io::Result<OwnedFd> {
    use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key: &str, value: &str| fsconfig_set_string(&context, key, value);
    set("source", "forebay")?;
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// The file system that answers the kernel's requests.
struct OneFile {
    requests: Arc<Requests>,
    name: String,
    runtime: Handle,
    since: SystemTime,
}

/// The inode numbers: FUSE requires 1 for the root; the file has the next one.
const FILE: INodeNo = INodeNo(2);

/// Time for which the kernel may cache attributes. Zero, because the size may change, and the kernel asks for
/// it when needed.
const KEPT: Duration = Duration::ZERO;

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let geometry = self.requests.geometry();
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0),
            FILE if geometry.read_only => (FileType::RegularFile, 0o400, geometry.bytes()),
            FILE => (FileType::RegularFile, 0o600, geometry.bytes()),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: geometry.physical_block_size,
            flags: 0,
        })
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(work));
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Ignore an error: these capabilities only make the file faster, and a kernel may lack some of them.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(SIDE_BY_SIDE);
        let _ = config.set_congestion_threshold(SIDE_BY_SIDE);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(FILE) {
            Some(found) if parent == INodeNo::ROOT && name == self.name.as_str() => {
                reply.entry(&KEPT, &found, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(found) => reply.attr(&KEPT, &found),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode != FILE {
            return reply.error(Errno::EISDIR);
        }
        // Bypass the page cache: the loop device and its users have pages of their own. If the file had pages in the
        // cache, too, reads would still succeed after this process has ended.
        let pages = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), pages | FopenFlags::FOPEN_NOFLUSH);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let requests = Arc::clone(&self.requests);
        self.spawn(async move {
            match requests.read(offset, size).await {
                Ok(data) => reply.data(&data.into_bytes()),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u32;
        // Copy the data: the buffer takes the next request as soon as this function returns.
        let data = Data::from(Bytes::copy_from_slice(data));
        let requests = Arc::clone(&self.requests);
        self.spawn(async move {
            match requests.write(offset, data).await {
                Ok(()) => reply.written(length),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let requests = Arc::clone(&self.requests);
        self.spawn(async move { answer(reply, requests.flush().await) });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let geometry = self.requests.geometry();
        // Report the physical block size, which the loop device uses as its discard granularity.
        let unit = geometry.physical_block_size.max(geometry.block_size);
        reply.statfs(geometry.bytes() / u64::from(unit), 0, 0, 1, 0, unit, 255, unit);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let requests = Arc::clone(&self.requests);
        let what = mode & !libc::FALLOC_FL_KEEP_SIZE;
        self.spawn(async move {
            let done = match what {
                libc::FALLOC_FL_PUNCH_HOLE => requests.discard(offset, length).await,
                libc::FALLOC_FL_ZERO_RANGE => requests.zero(offset, length).await,
                _ => Err(libc::EOPNOTSUPP),
            };
            answer(reply, done);
        });
    }
}

fn answer(reply: ReplyEmpty, done: Result<(), i32>) {
    match done {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}
