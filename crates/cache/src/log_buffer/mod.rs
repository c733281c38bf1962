//! An NVRAM in front of a log disk. A write is acknowledged when the NVRAM holds it, and is written to the
//! disk a moment later.
//!
//! Each gateway of a pair has such a buffer in front of its leg of the log, so a write that both legs have
//! acknowledged is in the memory of both gateways. Writes arrive on the disk in the order in which they were
//! acknowledged: even if the NVRAM is lost, the disk holds a prefix of them. A flush ends when the disk has
//! everything.
//!
//! The last block of the disk is the [`mark`] of the buffer. If an opening does not find the NVRAM again, the
//! mark shows that writes may be missing.

mod mark;
mod ring;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use journal::BLOCK_BYTES;
use parking_lot::Mutex;
use tokio::sync::Notify;
use volume::{
    Data, Durability, Error, Extensions, Extent, Geometry, Io, Lba, Mirror, MirrorError, Stack,
    Volume,
};

use crate::{confirmed::BootId, nvram::StableMemory, random::random, settings::NvramSurvival};
use mark::{BufferId, FoundMark, LogBufferMark};
use ring::{LogBufferContents, LogBufferRing};

/// A log disk with an NVRAM in front of it. The volume has one block less than the disk.
pub struct LogBuffer {
    shared: Arc<LogBufferCore>,
}

/// The failures that the NVRAM survives, and the present boot of the machine.
#[derive(Clone, Copy, Debug)]
pub struct NvramPromise {
    /// The failures that the NVRAM was declared to survive.
    pub survives: NvramSurvival,
    /// Identifies the current boot of the machine; `None` if it is not known.
    pub boot: Option<BootId>,
}

/// Acknowledged writes that are neither in the NVRAM nor on the disk any more. The disk holds a prefix of all writes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BufferLoss {
    /// A description of what happened to the NVRAM, for the log of events.
    pub reason: String,
    /// True if the writes were lost because the machine was rebooted, and the NVRAM was not declared to survive a
    /// reboot.
    pub is_declared: bool,
}

/// The reason why a log disk cannot be used with an NVRAM, or without one.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The disk has returned an error.
    #[error("the log disk fails: {0}")]
    Disk(#[from] Error),
    /// The disk was used with an NVRAM in front of it, which may hold newer writes: it must not be opened without it.
    #[error("an NVRAM may hold writes that this log does not have")]
    Needed,
    #[error("the NVRAM is in use by another log, and may hold writes of it")]
    OthersMemory,
    /// The disk does not hold a leg of a mirrored log.
    #[error(transparent)]
    Half(#[from] MirrorError),
    /// The leg was made without an NVRAM.
    #[error("it was made without an NVRAM, so its last block cannot hold the mark of an NVRAM")]
    NoPlace,
    /// The mark on the disk has this format version, which the program does not know.
    #[error("the mark of the log's NVRAM has format version {0}, this program knows 1")]
    Version(u32),
    #[error("the NVRAM fails: {0}")]
    Memory(String),
}

/// A buffer whose NVRAM has been read, and whose records have been written to the disk. The NVRAM has not
/// changed.
pub struct FoundBuffer {
    disk: Stack,
    ring: LogBufferRing,
    promise: NvramPromise,
    /// The id of the NVRAM, if the buffer keeps its content; `None` if the NVRAM is to be cleared.
    goes_on: Option<BufferId>,
    loss: Option<BufferLoss>,
}

struct LogBufferCore {
    disk: Stack,
    buffer: BufferId,
    state: Mutex<LogBufferState>,
    /// Notified when a record is on the disk, and when a write to the disk has failed.
    changed: Notify,
}

struct LogBufferState {
    ring: LogBufferRing,
    /// The writes that are not on the disk, oldest first.
    pending: VecDeque<PendingLogWrite>,
    /// For each block whose newest content is not on the disk: the number of the write, and the content.
    newest: BTreeMap<u64, (u64, Data)>,
    /// Every write up to this number is on the disk.
    on_disk: u64,
    /// Every write up to this number was put into the NVRAM before the NVRAM failed.
    kept: u64,
    /// True if the NVRAM has failed, and the mark on the disk records that all its writes are on the disk.
    is_void: bool,
    /// True once [`LogBuffer::close`] was called: all later writes are refused.
    is_closed: bool,
    /// The error of the last write to the disk. Cleared when a write succeeds; until then hosts wait for the
    /// disk.
    failure: Option<Error>,
    /// The number of writes to the disk that have failed.
    failures: u64,
    /// True if the task that writes to the disk is running.
    is_writing: bool,
}

struct PendingLogWrite {
    number: u64,
    block: u64,
    data: Data,
}

/// Returns true if an NVRAM may hold writes that are not on this disk. Then the disk must not be opened
/// without it.
///
/// # Errors
/// The disk cannot be read.
pub async fn needs_buffer(disk: &Stack) -> Result<bool, Error> {
    Ok(matches!(
        LogBufferMark::read(disk).await?,
        FoundMark::Mark(LogBufferMark { in_use: true, .. })
    ))
}

impl FoundBuffer {
    /// Reads the mark and the NVRAM, and writes the records in the NVRAM to the disk.
    ///
    /// # Errors
    /// See [`BufferError`]. The NVRAM has not changed.
    pub async fn open(
        disk: Stack,
        memory: Box<dyn StableMemory>,
        promise: NvramPromise,
    ) -> Result<Self, BufferError> {
        let mark = match LogBufferMark::read(&disk).await? {
            // In a leg that was made without an NVRAM, the last block belongs to the log.
            FoundMark::Blank if Mirror::label_of(&disk).await?.is_some() => {
                return Err(BufferError::NoPlace);
            }
            FoundMark::Blank => None,
            FoundMark::Mark(mark) => Some(mark),
            FoundMark::Version(version) => return Err(BufferError::Version(version)),
            FoundMark::Garbage => return Err(BufferError::NoPlace),
        };
        let buffer = mark.map_or([0; 16], |mark| mark.buffer);
        let (ring, contents) = LogBufferRing::open(memory, buffer);
        if let Some(error) = ring.error() {
            return Err(BufferError::Memory(error));
        }
        let Some(in_use) = mark.filter(|mark| mark.in_use) else {
            // The NVRAM has no writes of this log. Do not clear it if it has writes of another log.
            if contents == LogBufferContents::Other {
                return Err(BufferError::OthersMemory);
            }
            return Ok(Self { disk, ring, promise, goes_on: None, loss: None });
        };
        let lost = |reason: &str, is_declared| {
            let reason = reason.to_owned();
            Some(BufferLoss { reason, is_declared })
        };
        // After a reboot, a page of the NVRAM file may be as old as the last time the system wrote it back.
        let is_rebooted = in_use.boot.is_some_and(|then| promise.boot != Some(then));
        let loss = match contents {
            LogBufferContents::Other => return Err(BufferError::OthersMemory),
            _ if is_rebooted => lost(
                "the machine was rebooted, and the NVRAM was not declared to survive that",
                true,
            ),
            LogBufferContents::Whole => None,
            LogBufferContents::Blank => lost("the NVRAM is missing or blank", false),
            LogBufferContents::Damaged => lost("the NVRAM is damaged", false),
        };
        if loss.is_none() {
            for record in ring.held() {
                let data = Data::from(ring.data(record));
                disk.write(Lba(record.block), data, Durability::Stable).await?;
            }
        }
        let goes_on = loss.is_none().then_some(buffer);
        Ok(Self { disk, ring, promise, goes_on, loss })
    }

    /// Returns the writes that may be lost; `None` if none are. [`begin`](Self::begin) clears the NVRAM, and
    /// no later call can detect the loss.
    #[must_use]
    pub fn loss(&self) -> Option<&BufferLoss> {
        self.loss.as_ref()
    }

    /// Records a loss in the label of the leg on this disk ([`Mirror::note_loss`]). Call this before
    /// [`begin`](Self::begin). The label does not show a loss that is accepted. A loss is accepted if
    /// `accept_loss` is set. It is also accepted if the leg was used alone and the NVRAM was not declared to
    /// survive this failure: the other leg lacks these writes, too.
    ///
    /// # Errors
    /// The disk holds no leg of a mirror, or returns an error.
    pub fn note_loss(
        &self,
        accept_loss: bool,
    ) -> impl Future<Output = Result<(), MirrorError>> + Send + use<> {
        let (disk, loss) = (Arc::clone(&self.disk), self.loss.clone());
        async move {
            let Some(loss) = loss else {
                return if accept_loss { Mirror::note_loss(&disk, false).await } else { Ok(()) };
            };
            let is_alone = Mirror::label_of(&disk).await?.is_some_and(|label| label.alone);
            let is_given_up = accept_loss || (is_alone && loss.is_declared);
            tracing::warn!(
                reason = loss.reason,
                is_given_up,
                remedy =
                    "start the partner: it has them, and fills this leg; see docs/guide/pair.md",
                "this leg of the log lacks writes that only the NVRAM in front of it had"
            );
            Mirror::note_loss(&disk, !is_given_up).await
        }
    }

    /// Begins to use the NVRAM, and records that in the mark.
    ///
    /// # Errors
    /// The disk or the NVRAM has failed.
    pub async fn begin(mut self) -> Result<LogBuffer, BufferError> {
        let buffer = match self.goes_on {
            Some(buffer) => {
                self.ring.release(u64::MAX);
                buffer
            }
            None => {
                let id = random("log buffer");
                self.ring.format(id);
                id
            }
        };
        if let Some(error) = self.ring.error() {
            return Err(BufferError::Memory(error));
        }
        let boot = match self.promise.survives {
            NvramSurvival::Restart => Some(self.promise.boot.unwrap_or(UNKNOWN_BOOT)),
            NvramSurvival::PowerLoss => None,
        };
        LogBufferMark { buffer, in_use: true, boot }.write(&self.disk).await?;
        let next = self.ring.next();
        let state = LogBufferState {
            ring: self.ring,
            pending: VecDeque::new(),
            newest: BTreeMap::new(),
            on_disk: next - 1,
            kept: next - 1,
            is_void: false,
            is_closed: false,
            failure: None,
            failures: 0,
            is_writing: false,
        };
        let (state, changed) = (Mutex::new(state), Notify::new());
        Ok(LogBuffer {
            shared: Arc::new(LogBufferCore { disk: self.disk, buffer, state, changed }),
        })
    }
}

impl LogBuffer {
    /// Returns the number of bytes that are in the NVRAM and not on the disk.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.shared.state.lock().pending.iter().map(|pending| pending.data.len() as u64).sum()
    }

    /// Returns true while writes are acknowledged from the NVRAM. Returns false if the NVRAM or the disk has
    /// failed: then writes wait for the disk.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        self.shared.state.lock().is_fast()
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.state.lock().is_closed
    }

    /// Waits until every write is on the disk, and records in the mark that the NVRAM is not needed. Later
    /// writes are refused.
    ///
    /// # Errors
    /// The disk has failed. The next opening needs the NVRAM.
    pub async fn close(&self) -> Result<(), Error> {
        self.shared.state.lock().is_closed = true;
        self.flush().await?;
        let mark = LogBufferMark { buffer: self.shared.buffer, in_use: false, boot: None };
        mark.write(&self.shared.disk).await
    }
}

impl LogBufferState {
    fn is_fast(&self) -> bool {
        self.failure.is_none() && self.ring.is_sound()
    }

    /// Puts a write into the NVRAM, if there is room for it. Returns its number.
    fn take(&mut self, block: u64, data: &Data) -> Option<u64> {
        // Copy the data: otherwise the pages of the caller would stay in use until the disk has them.
        let mut bytes = vec![0; data.len()];
        data.copy_to_slice(&mut bytes);
        let data = Data::from(bytes);
        let number = self.ring.put(block, &data)?;
        if self.ring.is_sound() {
            self.kept = number;
        }
        for at in 0..data.len() / BLOCK_BYTES {
            let content = data.slice(at * BLOCK_BYTES, BLOCK_BYTES);
            self.newest.insert(block + at as u64, (number, content));
        }
        self.pending.push_back(PendingLogWrite { number, block, data });
        Some(number)
    }

    /// Joins the oldest writes into one write to the disk, as long as they are adjacent and have at most
    /// [`MOST_AT_ONCE`] bytes. Returns the first block, the data and the number of the last write; `None` if
    /// the mark of a failed NVRAM must be written first.
    fn group(&self) -> Option<(u64, Data, u64)> {
        let may_go = |pending: &&PendingLogWrite| {
            self.ring.is_sound() || self.is_void || pending.number <= self.kept
        };
        let mut writes = self.pending.iter().take_while(may_go);
        let first = writes.next()?;
        let (mut data, mut last) = (first.data.clone(), first.number);
        for pending in writes {
            let end = first.block + (data.len() / BLOCK_BYTES) as u64;
            if pending.block != end || data.len() + pending.data.len() > MOST_AT_ONCE {
                break;
            }
            data.append(pending.data.clone());
            last = pending.number;
        }
        Some((first.block, data, last))
    }

    /// Records that every write up to `number` is on the disk, so that the NVRAM need not keep it.
    fn note_on_disk(&mut self, number: u64) {
        while let Some(first) = self.pending.front().filter(|pending| pending.number <= number) {
            for block in first.block..first.block + (first.data.len() / BLOCK_BYTES) as u64 {
                if self.newest.get(&block).is_some_and(|(newest, _)| *newest <= number) {
                    self.newest.remove(&block);
                }
            }
            self.pending.pop_front();
        }
        self.on_disk = number;
        self.failure = None;
        self.ring.release(number);
    }
}

impl LogBufferCore {
    /// Starts the task that writes to the disk, if writes are pending and it is not running.
    fn start(self: &Arc<Self>, state: &mut LogBufferState) {
        if !state.is_writing && !state.pending.is_empty() {
            state.is_writing = true;
            tokio::spawn(write_pending(Arc::clone(self)));
        }
    }

    /// Writes at most [`LogBufferRing::most_blocks`] blocks. Waits for room in the NVRAM, and for the disk if
    /// the NVRAM or the disk has failed.
    async fn write(self: &Arc<Self>, block: u64, data: Data) -> Result<(), Error> {
        let take = |state: &mut LogBufferState| match state.is_closed {
            true => Some(Err(closed())),
            false => state.take(block, &data).map(Ok),
        };
        let taken = self.wait_until(take).await??;
        {
            let mut state = self.state.lock();
            self.start(&mut state);
            if state.is_fast() {
                return Ok(());
            }
        }
        self.wait_until(|state| (state.on_disk >= taken).then_some(())).await
    }

    /// Waits until `check` returns an answer.
    ///
    /// # Errors
    /// A write to the disk has failed during the wait.
    async fn wait_until<T>(
        self: &Arc<Self>,
        mut check: impl FnMut(&mut LogBufferState) -> Option<T>,
    ) -> Result<T, Error> {
        let failures = self.state.lock().failures;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state.lock();
                if let Some(answer) = check(&mut state) {
                    return Ok(answer);
                }
                if state.failures != failures
                    && let Some(error) = &state.failure
                {
                    return Err(error.clone());
                }
                self.start(&mut state);
            }
            changed.await;
        }
    }

    /// Waits until all writes that the NVRAM holds at the call are on the disk.
    async fn drain(self: &Arc<Self>) -> Result<(), Error> {
        let last = self.state.lock().ring.next() - 1;
        self.wait_until(|state| (state.on_disk >= last).then_some(())).await
    }
}

/// Writes to the disk until no write is pending or a write fails. After a failure, the next call to the
/// buffer starts this task again.
async fn write_pending(shared: Arc<LogBufferCore>) {
    loop {
        let group = {
            let mut state = shared.state.lock();
            if state.pending.is_empty() {
                state.is_writing = false;
                break;
            }
            state.group()
        };
        let written = match group {
            Some((block, data, last)) => {
                let written = shared.disk.write(Lba(block), data, Durability::Stable).await;
                written.map(|()| shared.state.lock().note_on_disk(last))
            }
            // The NVRAM has failed, and everything in it is on the disk. Later writes make the disk newer
            // than the NVRAM, so first record that an opening must not use it.
            None => {
                let mark = LogBufferMark { buffer: shared.buffer, in_use: false, boot: None };
                let written = mark.write(&shared.disk).await;
                written.map(|()| shared.state.lock().is_void = true)
            }
        };
        if let Err(error) = written {
            let mut state = shared.state.lock();
            if state.failure.is_none() {
                tracing::error!(
                    %error,
                    remedy = "nothing has to be done unless it lasts: then check the disk of the log \
                     (`dmesg -T`)",
                    "the log disk behind the NVRAM fails: writes wait for it"
                );
            }
            (state.failure, state.is_writing) = (Some(error), false);
            state.failures += 1;
            break;
        }
        shared.changed.notify_waiters();
    }
    shared.changed.notify_waiters();
}

impl Volume for LogBuffer {
    fn geometry(&self) -> Geometry {
        let geometry = self.shared.disk.geometry();
        // `volatile_cache` makes the partner send a flush when it needs the blocks on the disk.
        Geometry { blocks: geometry.blocks - 1, volatile_cache: true, ..geometry }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        let newest: Vec<(u64, Data)> = {
            let state = self.shared.state.lock();
            let found = state.newest.range(extent.lba.0..extent.end().0);
            found.map(|(block, (_, content))| (*block, content.clone())).collect()
        };
        if newest.is_empty() {
            return self.shared.disk.read(extent);
        }
        Io::new(async move {
            let on_disk = self.shared.disk.read(extent).await?;
            let mut data = Data::new();
            let mut at = extent.lba.0;
            let piece = |from: u64, to: u64| {
                let start = (from - extent.lba.0) as usize * BLOCK_BYTES;
                on_disk.slice(start, (to - from) as usize * BLOCK_BYTES)
            };
            for (block, content) in newest {
                data.append(piece(at, block));
                data.append(content);
                at = block + 1;
            }
            data.append(piece(at, extent.end().0));
            Ok(data)
        })
    }

    /// The write is stable in the NVRAM when this returns, whatever the durability. The next flush writes it
    /// to the disk.
    fn write(&self, lba: Lba, data: Data, _durability: Durability) -> Io<'_, ()> {
        let most = {
            let mut state = self.shared.state.lock();
            if state.is_closed {
                return Io::done(Err(closed()));
            }
            let most = state.ring.most_blocks() as usize * BLOCK_BYTES;
            if data.len() <= most && state.is_fast() && state.take(lba.0, &data).is_some() {
                self.shared.start(&mut state);
                if state.is_fast() {
                    return Io::done(Ok(()));
                }
                let taken = state.ring.next() - 1;
                drop(state);
                let on_disk =
                    move |state: &mut LogBufferState| (state.on_disk >= taken).then_some(());
                return Io::new(async move { self.shared.wait_until(on_disk).await });
            }
            most
        };
        Io::new(async move {
            let mut at = 0;
            while at < data.len() {
                let piece = data.slice(at, most.min(data.len() - at));
                let block = lba.0 + (at / BLOCK_BYTES) as u64;
                at += piece.len();
                self.shared.write(block, piece).await?;
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            self.shared.drain().await?;
            self.shared.disk.flush().await
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            self.shared.drain().await?;
            self.shared.disk.discard(extent).await
        })
    }

    fn admit(&self, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions::default()
    }
}

fn closed() -> Error {
    Error::Device("the log was closed".into())
}

/// Stored in the mark if the boot id could not be read. No machine has this boot id, so the next opening
/// assumes that the machine was rebooted.
const UNKNOWN_BOOT: BootId = BootId([0; 16]);
/// The largest write to the disk, in bytes. Disks come near their full rate with writes of this size.
const MOST_AT_ONCE: usize = 1 << 20;

#[cfg(test)]
mod tests;
