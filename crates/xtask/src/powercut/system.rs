//! The FUSE calls of the file system: with power, while the power fails, and without power.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    Request, TimeOrNow, WriteFlags,
};

use crate::powercut::content::{FaultFsContent, SECTOR};
use crate::powercut::supply::{Phase, Supply};
use crate::powercut::tree::{self, FaultFsFolder, FaultFsNode, FaultFsTree, Inode, ROOT};

/// The kind of a sync: the call that makes bytes or names stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultFsSyncKind {
    /// The program calls fsync on a file.
    File,
    /// An fdatasync of a file, or an msync of a mapping.
    Data,
    /// The program has written with O_DSYNC, O_SYNC or RWF_DSYNC.
    Write,
    /// The program calls fsync on a folder.
    Names,
}

/// One sync that a program has requested. A test decides by these properties if the sync is ignored
/// ([`Honour`]).
#[derive(Clone, Debug)]
pub struct FaultFsSync {
    pub kind: FaultFsSyncKind,
    /// The path of the file or folder in this file system, with a slash before each name.
    pub path: String,
    /// Number of syncs of the same kind since the file was last opened.
    pub since_opened: u64,
    /// Size in bytes of the file's stable content before this sync; 0 for a folder.
    pub stable_bytes: usize,
}

/// Decides whether a sync is honoured. An ignored sync makes no data stable, but the program gets
/// success.
pub type Honour = Arc<dyn Fn(&FaultFsSync) -> bool + Send + std::marker::Sync>;

/// A file system. This value exists longer than the mount, so that a test can draw images from the tree afterwards.
pub struct FaultFsCore {
    state: Mutex<FaultFsState>,
    supply: Arc<Supply>,
    machine: usize,
    honour: Honour,
}

/// The number of a write, and the range of bytes in the file that it has written.
type UnsyncedWrite = (u64, Range<usize>);

struct FaultFsState {
    tree: FaultFsTree,
    /// Writes with O_DSYNC that wait for their fsync, by thread and inode. After such a write the kernel sends an fsync
    /// on behalf of the thread that has written (`generic_write_sync`).
    stable_writes: BTreeMap<(u32, u64), Vec<UnsyncedWrite>>,
    /// For each inode and kind of sync, the number of syncs since the file was last opened.
    syncs: HashMap<(u64, FaultFsSyncKind), u64>,
}

impl FaultFsCore {
    pub fn new(
        tree: FaultFsTree,
        supply: Arc<Supply>,
        machine: usize,
        honour: Honour,
    ) -> Arc<FaultFsCore> {
        let state = FaultFsState { tree, stable_writes: BTreeMap::new(), syncs: HashMap::new() };
        Arc::new(FaultFsCore { state: Mutex::new(state), supply, machine, honour })
    }

    /// Returns a copy of the tree. [`FaultFsTree::draw`] makes the images of a power cut from it.
    pub fn tree(&self) -> FaultFsTree {
        self.lock().tree.clone()
    }

    fn lock(&self) -> MutexGuard<'_, FaultFsState> {
        self.state.lock().expect("no panic in here")
    }

    /// Makes a change that a power cut can undo, and answers the call. If the machine has power, replies with the
    /// outcome. Otherwise replies with an error when the processes have been killed. The change is made in both cases,
    /// since a disk may perform a write that it has not acknowledged.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut FaultFsState) -> Result<T, tree::FaultFsErrno>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        let mut state = self.lock();
        let phase = self.supply.spend(self.machine);
        let outcome = change(&mut state);
        drop(state);
        self.answer(phase, outcome, answer);
    }

    /// Performs a sync if the disk has power, and answers the call.
    fn sync(
        &self,
        sync: impl FnOnce(&mut FaultFsState) -> Result<(), tree::FaultFsErrno>,
        reply: ReplyEmpty,
    ) {
        let mut state = self.lock();
        let phase = self.supply.spend(self.machine);
        let outcome = if phase.has_disk() { sync(&mut state) } else { Ok(()) };
        drop(state);
        self.answer(phase, outcome, |outcome| empty(reply, outcome));
    }

    fn answer<T>(
        &self,
        phase: Phase,
        outcome: Result<T, tree::FaultFsErrno>,
        answer: impl FnOnce(Result<T, Errno>) + Send + 'static,
    ) {
        match phase {
            Phase::On | Phase::Killed => answer(outcome.map_err(Errno::from_i32)),
            Phase::Failing | Phase::Off => {
                self.supply.hold(self.machine, Box::new(|| answer(Err(Errno::EIO))));
            }
        }
    }

    fn honours(&self, state: &mut FaultFsState, ino: u64, kind: FaultFsSyncKind) -> bool {
        let count = state.syncs.entry((ino, kind)).or_default();
        let since_opened = *count;
        *count += 1;
        let path = state.tree.inode(ino).map_or_else(|_| String::new(), |inode| inode.path.clone());
        let stable_bytes = state.tree.file(ino).map_or(0, FaultFsContent::stable_len);
        (self.honour)(&FaultFsSync { kind, path, since_opened, stable_bytes })
    }
}

/// The FUSE file system of a [`FaultFsCore`], which the kernel calls.
pub struct System(pub Arc<FaultFsCore>);

/// How long the kernel may cache names and attributes: an hour. They change only through this
/// mount, so the cache is never stale.
const KEPT: Duration = Duration::from_secs(3600);

impl Filesystem for System {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Leave FUSE_WRITEBACK_CACHE off, so that this process receives each write before write(2) returns.
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let state = self.0.lock();
        let found = state.tree.lookup(parent.0, name).and_then(|ino| attributes(&state.tree, ino));
        entry(reply, found.map_err(Errno::from_i32));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = attributes(&self.0.lock().tree, ino.0);
        attr(reply, found.map_err(Errno::from_i32));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = move |state: &mut FaultFsState| {
            let operation = state.tree.next_operation();
            let inode = state.tree.inode_mut(ino.0)?;
            inode.mode = mode.map_or(inode.mode, |mode| (mode & 0o7777) as u16);
            (inode.uid, inode.gid) = (uid.unwrap_or(inode.uid), gid.unwrap_or(inode.gid));
            if let Some(size) = size {
                let size = file_size(size)?;
                state.tree.file_mut(ino.0)?.resize(operation, size);
            }
            attributes(&state.tree, ino.0)
        };
        self.0.change(change, |outcome| attr(reply, outcome));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let inode =
            new_inode(request, mode & !umask, FaultFsNode::Folder(FaultFsFolder::default()));
        let change = |state: &mut FaultFsState| {
            let ino = state.tree.create(parent.0, name, inode)?;
            attributes(&state.tree, ino)
        };
        self.0.change(change, |outcome| entry(reply, outcome));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let inode = new_inode(request, mode & !umask, FaultFsNode::File(FaultFsContent::default()));
        let change = |state: &mut FaultFsState| {
            let ino = state.tree.create(parent.0, name, inode)?;
            attributes(&state.tree, ino)
        };
        self.0.change(change, |outcome| match outcome {
            Ok(found) => {
                reply.created(&KEPT, &found, Generation(0), FileHandle(0), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        });
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let change = |state: &mut FaultFsState| state.tree.remove(parent.0, name, false);
        self.0.change(change, |outcome| empty(reply, outcome));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let change = |state: &mut FaultFsState| state.tree.remove(parent.0, name, true);
        self.0.change(change, |outcome| empty(reply, outcome));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let change = |state: &mut FaultFsState| {
            if parent != new_parent {
                return Err(libc::EXDEV);
            }
            if !flags.is_empty() {
                return Err(libc::EINVAL);
            }
            state.tree.rename(parent.0, name, new_name)
        };
        self.0.change(change, |outcome| empty(reply, outcome));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.0.lock().syncs.retain(|(other, _), _| *other != ino.0);
        // The kernel may keep cached pages after a close, since a file changes only through this
        // mount.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = self.0.lock();
        let phase = self.0.supply.phase(self.0.machine);
        if phase.has_disk() {
            match state.tree.file(ino.0) {
                Ok(content) => reply.data(content.read(offset as usize, size as usize)),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
            return;
        }
        drop(state);
        self.0.supply.hold(self.0.machine, Box::new(move || reply.error(Errno::EIO)));
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u32;
        let stable = flags.0 & libc::O_DSYNC != 0;
        let from_mapping = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let thread = request.pid();
        let change = |state: &mut FaultFsState| {
            let operation = state.tree.next_operation();
            let start = file_size(offset)?;
            let content = state.tree.file_mut(ino.0)?;
            content.write(operation, start, data);
            if stable && !from_mapping {
                let range = start..start + data.len();
                state.stable_writes.entry((thread, ino.0)).or_default().push((operation, range));
            }
            Ok(length)
        };
        self.0.change(change, |outcome| match outcome {
            Ok(length) => reply.written(length),
            Err(error) => reply.error(error),
        });
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        data_only: bool,
        reply: ReplyEmpty,
    ) {
        let thread = request.pid();
        let core = Arc::clone(&self.0);
        let sync = |state: &mut FaultFsState| {
            if let Some(writes) = state.stable_writes.remove(&(thread, ino.0)) {
                if core.honours(state, ino.0, FaultFsSyncKind::Write) {
                    let content = state.tree.file_mut(ino.0)?;
                    for (operation, range) in writes {
                        content.sync_write(operation, range);
                    }
                }
                return Ok(());
            }
            let kind = if data_only { FaultFsSyncKind::Data } else { FaultFsSyncKind::File };
            if core.honours(state, ino.0, kind) {
                state.tree.file_mut(ino.0)?.sync();
            }
            Ok(())
        };
        self.0.sync(sync, reply);
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let state = self.0.lock();
        let names = match state.tree.names(ino.0) {
            Ok(names) => names,
            Err(errno) => return reply.error(Errno::from_i32(errno)),
        };
        for (at, (name, found)) in names.into_iter().enumerate().skip(offset as usize) {
            let kind = state.tree.inode(found).map_or(FileType::RegularFile, kind_of);
            if reply.add(INodeNo(found), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let core = Arc::clone(&self.0);
        let sync = |state: &mut FaultFsState| {
            if core.honours(state, ino.0, FaultFsSyncKind::Names) {
                state.tree.sync_names(ino.0)?;
            }
            Ok(())
        };
        self.0.sync(sync, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = SIZE_LIMIT / 4096;
        reply.statfs(blocks, blocks, blocks, 1 << 20, 1 << 20, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let change = |state: &mut FaultFsState| {
            let operation = state.tree.next_operation();
            let (start, end) = (file_size(offset)?, file_size(offset.saturating_add(length))?);
            let content = state.tree.file_mut(ino.0)?;
            match mode & !libc::FALLOC_FL_KEEP_SIZE {
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE => {
                    content.zero(operation, start..end);
                }
                0 if mode == 0 && end > content.len() => content.resize(operation, end),
                0 => {}
                _ => return Err(libc::EOPNOTSUPP),
            }
            Ok(())
        };
        self.0.change(change, |outcome| empty(reply, outcome));
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let state = self.0.lock();
        let found = match (state.tree.file(ino.0), usize::try_from(offset), whence) {
            (Err(errno), _, _) => Err(errno),
            (Ok(content), Ok(from), libc::SEEK_DATA) => content.seek(from, true).ok_or(libc::ENXIO),
            (Ok(content), Ok(from), libc::SEEK_HOLE) => {
                content.seek(from, false).ok_or(libc::ENXIO)
            }
            _ => Err(libc::EINVAL),
        };
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
}

/// Maximum size of a file in bytes. Files are kept in memory, and a test needs some megabytes only.
const SIZE_LIMIT: u64 = 1 << 30;

fn file_size(size: u64) -> Result<usize, tree::FaultFsErrno> {
    if size > SIZE_LIMIT { Err(libc::EFBIG) } else { Ok(size as usize) }
}

fn new_inode(request: &Request, mode: u32, node: FaultFsNode) -> Inode {
    let mode = (mode & 0o7777) as u16;
    Inode { node, mode, uid: request.uid(), gid: request.gid(), path: String::new() }
}

fn kind_of(inode: &Inode) -> FileType {
    match inode.node {
        FaultFsNode::File(_) => FileType::RegularFile,
        FaultFsNode::Folder(_) => FileType::Directory,
    }
}

fn attributes(tree: &FaultFsTree, ino: u64) -> Result<FileAttr, tree::FaultFsErrno> {
    let inode = tree.inode(ino)?;
    let (size, allocated, nlink) = match &inode.node {
        FaultFsNode::File(content) => (content.len() as u64, content.allocated(), 1),
        FaultFsNode::Folder(_) => (0, 0, 2),
    };
    Ok(FileAttr {
        ino: if ino == ROOT { INodeNo::ROOT } else { INodeNo(ino) },
        size,
        blocks: allocated / SECTOR as u64,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: kind_of(inode),
        perm: inode.mode,
        nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}

fn entry(reply: ReplyEntry, outcome: Result<FileAttr, Errno>) {
    match outcome {
        Ok(found) => reply.entry(&KEPT, &found, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn attr(reply: ReplyAttr, outcome: Result<FileAttr, Errno>) {
    match outcome {
        Ok(found) => reply.attr(&KEPT, &found),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}
