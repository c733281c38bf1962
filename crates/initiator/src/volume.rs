//! A unit of an iSCSI target as a volume.

mod extensions;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use iscsi::session::initiator::DataPhase;
use parking_lot::Mutex;
use scsi::{BlockCommand, Cdb, Command, Form, LbaStatus, ScsiStatus};
use volume::{
    Allocation, Data, Durability, Extensions, Extent, Geometry, Holding, Io, Lba, Volume,
};

use crate::{
    CommandError, Error, InitiatorStatistics, LinkState, PerformedCommand, RemoteSession, Settings,
    UnitDescription, claim_task::ClaimWatchTask, error::is_refusal,
    volatile_writes::VolatileWrites,
};

/// A [`Volume`] whose blocks are those of a unit of an iSCSI target.
///
/// Calls survive the loss of a connection if it is restored within `give_up_after`: a command that was not answered is
/// sent again. A write that was acknowledged with [`Durability::Volatile`] and not flushed is lost if the target is
/// then restarted. A restart cannot be distinguished from the loss of a connection. Therefore the next
/// [`Volume::flush`] fails with [`volume::Error::Device`] whenever writes before it were acknowledged in an earlier
/// session (or before a reset). The caller then sends again what it has written since its last successful flush. The
/// loss is reported once: if several independent callers write, one of them has to flush for all.
pub struct RemoteVolume {
    session: RemoteSession,
    /// The geometry when the volume was opened. The unit may have grown since.
    geometry: Geometry,
    identity: String,
    piece_bytes: u32,
    stability: Mutex<VolatileWrites>,
    /// True if the unit has refused a WRITE SAME with UNMAP, although it reports that it supports the command.
    no_write_same: AtomicBool,
    no_lba_status: AtomicBool,
    /// Number of blocks in an atomic epoch of the unit, as the unit has last reported it.
    epoch_blocks: AtomicU64,
    /// True if a unit without claims is reserved instead, see [`Settings::reserve`].
    reserves: bool,
    /// The task that checks whether the claim is still in force; it starts with the first claim.
    watch: Mutex<Option<ClaimWatchTask>>,
}

/// The most commands of one call in flight: 16 MiB in commands of 1 MiB, sixteen times as much as a gigabit link
/// carries in a round trip of 8 ms.
const PIECES_IN_FLIGHT: usize = 16;

impl RemoteVolume {
    pub async fn connect(settings: Settings) -> Result<Self, Error> {
        let (piece_bytes, reserves) = (settings.piece_bytes, settings.reserve);
        let session = RemoteSession::open(settings).await?;
        let facts = session.facts().ok_or(Error::Closed)?;
        let (identity, geometry) = (facts.identity.clone(), facts.geometry);
        Ok(Self { reserves, ..Self::new(session, identity, geometry, piece_bytes) })
    }

    /// Returns a volume that connects in the background to the unit with this identity. Use it to start while the
    /// target may be unreachable. If the session finds another unit or a smaller one, all calls fail with a
    /// [`volume::Error::Device`] that names both.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn open_lazy(settings: Settings, geometry: Geometry, identity: String) -> Self {
        let (piece_bytes, reserves) = (settings.piece_bytes, settings.reserve);
        let session = RemoteSession::open_lazy(settings, identity.clone(), &geometry);
        Self { reserves, ..Self::new(session, identity, geometry, piece_bytes) }
    }

    fn new(session: RemoteSession, identity: String, geometry: Geometry, piece_bytes: u32) -> Self {
        Self {
            session,
            geometry,
            identity,
            piece_bytes,
            stability: Mutex::new(VolatileWrites::default()),
            no_write_same: AtomicBool::new(false),
            no_lba_status: AtomicBool::new(false),
            epoch_blocks: AtomicU64::new(geometry.epoch_blocks),
            reserves: false,
            watch: Mutex::new(None),
        }
    }

    /// Returns the unique identity of the unit: `naa.…`, `eui.…`, `t10.…` or `serial.…`.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    #[must_use]
    pub fn session(&self) -> &RemoteSession {
        &self.session
    }

    #[must_use]
    pub fn statistics(&self) -> InitiatorStatistics {
        self.session.statistics()
    }

    /// Returns the generation of the session, see [`RemoteSession::generation`].
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.session.generation()
    }

    /// Logs out, which takes at most 10 s. Does not flush. Later calls fail.
    pub async fn close(&self) {
        self.watch.lock().take();
        self.session.close().await;
    }

    /// Returns the unit's description. Before the first login, waits for it as long as any other call does.
    async fn facts(&self) -> Result<Arc<UnitDescription>, volume::Error> {
        if let Some(facts) = self.session.facts() {
            // Store the size of the unit's epochs here: a volume that was opened without a connection gets it with the
            // first call.
            self.epoch_blocks.store(facts.geometry.epoch_blocks, Ordering::Relaxed);
            return Ok(facts);
        }
        let mut watch = self.session.watch();
        let decided = |state: &LinkState| !matches!(state, LinkState::Down { given_up: false, .. });
        let state = watch.wait_for(decided).await;
        let state = state.map_or(LinkState::Closed, |state| state.clone());
        self.session.facts().ok_or_else(|| {
            refusal(&state).unwrap_or_else(|| volume::Error::Away("not connected".into()))
        })
    }

    async fn perform(
        &self,
        cdb: Cdb,
        transfer: DataPhase,
        extent: Extent,
    ) -> Result<PerformedCommand, volume::Error> {
        let answer = self.session.execute(cdb, transfer).await;
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failed(error, extent).await),
        }
    }

    /// Converts the error of a command to one of the volume. If the unit has another owner, finds out its name for the
    /// error.
    async fn failed(&self, error: CommandError, extent: Extent) -> volume::Error {
        if let CommandError::Check(sense) = error
            && is_refusal(&sense)
            && let Some(claim) = self.session.claimed().get()
        {
            let reason = self.session.who_has_it(sense, &claim).await;
            return volume::Error::Fenced(reason);
        }
        if matches!(error, CommandError::Status(ScsiStatus::ReservationConflict))
            && let Some(claim) = self.session.claimed().get()
            && self.session.claimed().holding() == Holding::Reserved
        {
            let reason: Arc<str> = "another initiator has taken over the unit's reservation".into();
            self.session.claimed().note(&claim, Holding::Refused(reason.clone()));
            return volume::Error::Fenced(reason);
        }
        error.into_volume_error(extent)
    }

    async fn read_piece(&self, extent: Extent) -> Result<Data, volume::Error> {
        let bytes = extent.blocks * self.geometry.block_size;
        let cdb = Command::read(extent.lba.0, extent.blocks).encode();
        let answer = self.perform(cdb, DataPhase::In(bytes), extent).await?;
        let data: Data = answer.data_in.into_iter().collect();
        if data.len() != bytes as usize {
            let reason = format!("a read of {bytes} bytes returned {}", data.len());
            return Err(volume::Error::Device(reason.into()));
        }
        Ok(data)
    }

    async fn write_piece(
        &self,
        extent: Extent,
        data: Bytes,
        durability: Durability,
        facts: &UnitDescription,
    ) -> Result<WriteStability, volume::Error> {
        let fua = durability == Durability::Stable && facts.fua && facts.geometry.volatile_cache;
        let cdb = Command::write(extent.lba.0, extent.blocks, fua).encode();
        let answer = self.perform(cdb, DataPhase::Out(data), extent).await?;
        if answer.residual != iscsi::pdu::Residual::None {
            let reason = format!("the target took only a part of a write: {:?}", answer.residual);
            return Err(volume::Error::Device(reason.into()));
        }
        // Do not note a stable write: `write` itself sends it again if the unit restarts.
        if durability == Durability::Volatile && answer.volatile_cache {
            self.stability.lock().note_write(answer.generation);
        }
        let stable = fua || !answer.volatile_cache;
        Ok(WriteStability { generation: answer.generation, stable })
    }

    async fn write_zeros(
        &self,
        extent: Extent,
        facts: &UnitDescription,
    ) -> Result<(), volume::Error> {
        let piece = self.piece_blocks(facts);
        let zeros = Bytes::from(vec![0; (piece.min(extent.blocks) * self.block_size()) as usize]);
        let writes = pieces(extent, piece).map(|extent| {
            let data = zeros.slice(..(extent.blocks * self.block_size()) as usize);
            Ok(self.write_piece(extent, data, Durability::Volatile, facts))
        });
        let writing = stream::iter(writes).try_buffer_unordered(PIECES_IN_FLIGHT);
        writing.try_for_each(|_| async { Ok(()) }).await
    }

    /// Sends WRITE SAME (16) with UNMAP and a block of zeros: the blocks then read as zeros, and the unit may free
    /// their space. Returns false if the unit does not support the command.
    async fn write_same(&self, extent: Extent, most: u32) -> Result<bool, volume::Error> {
        let zeros = Bytes::from(vec![0; self.block_size() as usize]);
        for piece in pieces(extent, most) {
            let transfer = scsi::BlockTransfer {
                form: Form::Sixteen,
                ..scsi::BlockTransfer::new(piece.lba.0, piece.blocks)
            };
            let (unmap, anchor, no_data_out) = (true, false, false);
            let command = BlockCommand::WriteSame { transfer, unmap, anchor, no_data_out };
            match self.session.execute(command.encode(), DataPhase::Out(zeros.clone())).await {
                Ok(answer) if answer.volatile_cache => {
                    self.stability.lock().note_write(answer.generation);
                }
                Ok(_) => {}
                Err(error) if error.is_not_supported() => return Ok(false),
                Err(error) => return Err(self.failed(error, piece).await),
            }
        }
        Ok(true)
    }

    async fn synchronize_cache(&self) -> Result<PerformedCommand, CommandError> {
        let short = Command::synchronize_cache().encode();
        match self.session.execute(short, DataPhase::None).await {
            Err(error) if error.is_not_supported() => {
                let transfer =
                    scsi::BlockTransfer { form: Form::Sixteen, ..scsi::BlockTransfer::new(0, 0) };
                let long = BlockCommand::SynchronizeCache { transfer, immediate: false };
                self.session.execute(long.encode(), DataPhase::None).await
            }
            result => result,
        }
    }

    async fn flush_all(&self, facts: &UnitDescription) -> Result<(), volume::Error> {
        self.flush_with(facts, || self.synchronize_cache()).await
    }

    /// Flushes the unit: calls `synchronize`, which sends SYNCHRONIZE CACHE. Does nothing if no write needs a flush.
    /// Returns an error if the unit was restarted since a volatile write.
    async fn flush_with<F>(
        &self,
        facts: &UnitDescription,
        synchronize: impl FnOnce() -> F,
    ) -> Result<(), volume::Error>
    where
        F: Future<Output = Result<PerformedCommand, CommandError>>,
    {
        // With this error, the caller sends its unflushed writes again before it flushes.
        let restarted = || {
            volume::Error::Device(
                "the remote unit was restarted: writes that were not flushed may be lost".into(),
            )
        };
        let begun = {
            let mut stability = self.stability.lock();
            // If the unit has no volatile cache now, flush all the same if writes were acknowledged while it had one.
            if !facts.geometry.volatile_cache && stability.is_clean() {
                return Ok(());
            }
            let begun = stability.begin_flush();
            if stability.take_lost(begun) {
                return Err(restarted());
            }
            begun
        };
        let whole = Extent { lba: Lba(0), blocks: 1 };
        let answer = match synchronize().await {
            Ok(answer) => answer,
            Err(error) => return Err(self.failed(error, whole).await),
        };
        if self.stability.lock().end_flush(begun, answer.generation) {
            return Ok(());
        }
        Err(restarted())
    }

    fn block_size(&self) -> u32 {
        self.geometry.block_size
    }

    /// Returns the maximum number of blocks in one command.
    fn piece_blocks(&self, facts: &UnitDescription) -> u32 {
        let ours = (self.piece_bytes / self.block_size()).max(1);
        facts.max_transfer_blocks.map_or(ours, |theirs| theirs.min(ours))
    }
}

impl Volume for RemoteVolume {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: self.session.blocks().unwrap_or(self.geometry.blocks),
            epoch_blocks: self.epoch_blocks.load(Ordering::Relaxed),
            ..self.geometry
        }
    }

    fn read(&self, extent: Extent) -> Io<'_, Data> {
        Io::new(async move {
            let facts = self.facts().await?;
            let piece = self.piece_blocks(&facts);
            if extent.blocks <= piece {
                return self.read_piece(extent).await;
            }
            let reads = pieces(extent, piece).map(|extent| Ok(self.read_piece(extent)));
            let append = |mut all: Data, data| async move {
                all.append(data);
                Ok(all)
            };
            stream::iter(reads).try_buffered(PIECES_IN_FLIGHT).try_fold(Data::new(), append).await
        })
    }

    fn write(&self, lba: Lba, data: Data, durability: Durability) -> Io<'_, ()> {
        Io::new(async move {
            let block_size = self.block_size() as usize;
            let Ok(blocks) = u32::try_from(data.len() / block_size) else {
                return Err(volume::Error::OutOfRange(Extent { lba, blocks: u32::MAX }));
            };
            let extent = Extent { lba, blocks };
            for attempt in 0..STABLE_ATTEMPTS {
                let facts = self.facts().await?;
                let is_alone = attempt == 0 && blocks <= self.piece_blocks(&facts);
                let writes = pieces(extent, self.piece_blocks(&facts)).map(|piece| {
                    let start = (piece.lba.0 - lba.0) as usize * block_size;
                    let data = data.slice(start, piece.blocks as usize * block_size);
                    Ok(self.write_piece(piece, data.into_bytes(), durability, &facts))
                });
                let writing = stream::iter(writes).try_buffer_unordered(PIECES_IN_FLIGHT);
                let join = |all: WriteStability, piece| async move { Ok(all.join(piece)) };
                let written = writing.try_fold(WriteStability::NOTHING, join).await;
                let written = written.map_err(|error| match is_alone {
                    true => error,
                    // The write was split into several commands, so another command may have written its blocks.
                    false => error.after_a_part(),
                })?;
                if durability == Durability::Volatile || written.stable {
                    return Ok(());
                }
                // Do not use `flush_all` here: it would consume the report of a loss that other writers need as well.
                let flushed = self.synchronize_cache().await;
                let flushed =
                    flushed.map_err(|error| error.into_volume_error(extent).after_a_part())?;
                if flushed.generation == written.generation {
                    return Ok(());
                }
                // The unit has restarted between the write and the flush: repeat the write.
            }
            Err(volume::Error::Device("the remote unit restarts too often".into()))
        })
    }

    fn flush(&self) -> Io<'_, ()> {
        Io::new(async move {
            let facts = self.facts().await?;
            self.flush_all(&facts).await
        })
    }

    fn discard(&self, extent: Extent) -> Io<'_, ()> {
        Io::new(async move {
            let facts = self.facts().await?;
            let failed = |most: u32| {
                move |error: volume::Error| match extent.blocks <= most {
                    true => error,
                    // An earlier piece may have been discarded.
                    false => error.after_a_part(),
                }
            };
            if let Some(most) = facts.write_same_unmap_blocks
                && !self.no_write_same.load(Ordering::Relaxed)
            {
                if self.write_same(extent, most).await.map_err(failed(most))? {
                    return Ok(());
                }
                self.no_write_same.store(true, Ordering::Relaxed);
            }
            let piece = self.piece_blocks(&facts);
            self.write_zeros(extent, &facts).await.map_err(failed(piece))
        })
    }

    fn admit(&self, _bytes: usize) -> Result<(), volume::Error> {
        refusal(&self.session.state()).map_or(Ok(()), Err)
    }

    fn extensions(&self) -> Extensions<'_> {
        Extensions {
            provisioning: Some(self),
            resizable: Some(self),
            rollback: Some(self),
            ordered_flush: Some(self),
            writer: Some(self),
            coherence: Some(self),
            most_calls: Some(self.session.queue_depth()),
            ..Extensions::default()
        }
    }
}

/// Summarizes the acknowledgments of one or several writes.
#[derive(Clone, Copy)]
struct WriteStability {
    /// The lowest generation of the unit in which one of the writes was acknowledged.
    generation: u64,
    /// True if all of the writes are stable without a flush.
    stable: bool,
}

impl WriteStability {
    const NOTHING: Self = Self { generation: u64::MAX, stable: true };

    fn join(self, other: Self) -> Self {
        Self {
            generation: self.generation.min(other.generation),
            stable: self.stable && other.stable,
        }
    }
}

/// Converts the status descriptors that a unit returned. Stops at the first one that does not begin where the one
/// before it ended. Blocks without a reliable status count as mapped.
fn allocation(extent: Extent, told: impl Iterator<Item = LbaStatus>) -> Allocation {
    let mut allocation = Allocation::default();
    let mut next = extent.lba.0;
    for status in told {
        let end = status.lba.checked_add(u64::from(status.blocks));
        let Some(end) = end.filter(|end| status.lba <= next && *end > next) else { break };
        let left = extent.end().0 - next;
        let blocks = (end - next).min(left) as u32;
        if blocks == 0 || !allocation.push(blocks, status.mapped) {
            break;
        }
        next += u64::from(blocks);
    }
    if allocation.blocks() == 0 {
        return Allocation::mapped(extent.blocks);
    }
    allocation
}

/// How often a stable write is sent if it needs a flush and the unit restarts between the write and the flush.
const STABLE_ATTEMPTS: usize = 3;

/// Returns the error with which calls fail at once in this state; `None` if they wait.
fn refusal(state: &LinkState) -> Option<volume::Error> {
    match state {
        LinkState::Up | LinkState::Down { given_up: false, .. } => None,
        LinkState::Down { reason, .. } => Some(volume::Error::Away(reason.clone())),
        LinkState::Changed(reason) => Some(volume::Error::Device(reason.clone())),
        LinkState::Fenced(reason) => Some(volume::Error::Fenced(reason.clone())),
        LinkState::Closed => Some(volume::Error::Away("the session was closed".into())),
    }
}

/// Splits an extent into pieces of at most `most` blocks.
fn pieces(extent: Extent, most: u32) -> impl Iterator<Item = Extent> {
    (0..extent.blocks).step_by(most as usize).map(move |at| Extent {
        lba: Lba(extent.lba.0 + u64::from(at)),
        blocks: most.min(extent.blocks - at),
    })
}

#[cfg(test)]
mod tests;
