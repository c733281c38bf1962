//! A block device (SBC) over a `Volume`.

mod limits;
mod patience;
mod image;
mod effect;
mod refused_claims;
mod ownership;
mod sharing;
mod medium_state;
mod space;
mod description;
mod flush_gate;
mod claim;
mod copies;
mod access;
mod sanitizer;
mod writers;
mod bounds;
mod claiming;
mod transfer;
mod exclusive;
mod status;
mod sanitize;
mod copy;
mod token;
mod provisioning;
mod describe;
mod own;
mod share;
mod mode;
mod medium;
mod gated;
mod start;
mod admit;

use std::{
    io,
    sync::{Arc, atomic::AtomicU64},
};

use scsi::{AdmittedCommand, Cdb, Command, ParsedCommand, PrimaryCommand, Sense};
use volume::{Data, Geometry, Stack};

pub use self::limits::{Settings, Share};
use self::{
    claim::BlockRangeLocks, copies::Copies, medium_state::Medium, sanitizer::Sanitizer,
    space::Threshold, writers::BlockWriters,
};
use crate::{
    AttentionChange, Completion, FlushedUnit, LogicalUnit, Neighbours, Nexus, PrimaryUnit, Task,
    TaskAttribute, TaskManagement, UnitAbilities, UnitIdentity, UnitReply, primary::TaskTurn,
    store::UnitStore, tokens::UnitRodTokens,
};

/// A block device that keeps its blocks in a volume.
///
/// Simple tasks run in the order of arrival and may end in any order.
pub struct BlockUnit {
    primary: PrimaryUnit,
    volume: Stack,
    settings: Settings,
    /// The number of blocks of the volume when it was last checked. A difference means that the capacity has changed.
    known_blocks: AtomicU64,
    medium: Medium,
    threshold: Threshold,
    writers: BlockWriters,
    claims: BlockRangeLocks,
    tokens: UnitRodTokens,
    copies: Copies,
    sanitizer: Arc<Sanitizer>,
}

struct BlockCommandInput<'a> {
    data: Data,
    geometry: Geometry,
    turn: TaskTurn<'a>,
    /// The number of the nexus that sent the task.
    nexus: u64,
}

impl BlockUnit {
    /// Returns a unit over `volume`. The unit loses reservations and mode parameters when the process ends,
    /// and reports that it cannot save them.
    #[must_use]
    pub fn new(volume: Stack, identity: UnitIdentity, settings: Settings) -> Self {
        let writers = BlockWriters::default();
        let sanitizer = Arc::new(Sanitizer::new());
        Self::with(volume, PrimaryUnit::new(identity), settings, writers, sanitizer)
    }

    /// Returns a unit with the claims, reservations, mode parameters and identifying information in `store`.
    /// The unit continues a SANITIZE that was not finished, for which it needs the runtime in which it is
    /// opened.
    ///
    /// # Errors
    /// A record cannot be read, or was not written by a unit.
    pub fn open(
        volume: Stack,
        identity: UnitIdentity,
        settings: Settings,
        store: Arc<dyn UnitStore>,
    ) -> io::Result<Self> {
        let writers = BlockWriters::load(&settings, &volume, &store)?;
        let primary = PrimaryUnit::open(identity, &store)?;
        let sanitizer = Sanitizer::load(store, &volume)?;
        Ok(Self::with(volume, primary, settings, writers, sanitizer))
    }

    fn with(
        volume: Stack,
        primary: PrimaryUnit,
        settings: Settings,
        writers: BlockWriters,
        sanitizer: Arc<Sanitizer>,
    ) -> Self {
        let known_blocks = AtomicU64::new(volume.geometry().blocks);
        Self {
            primary,
            volume,
            settings,
            known_blocks,
            medium: Medium::default(),
            threshold: Threshold::new(settings.soft_threshold_percent),
            writers,
            claims: BlockRangeLocks::default(),
            tokens: UnitRodTokens::default(),
            copies: Copies::default(),
            sanitizer,
        }
    }

    #[must_use]
    pub fn identity(&self) -> &UnitIdentity {
        self.primary.identity()
    }

    #[must_use]
    pub fn volume(&self) -> &Stack {
        &self.volume
    }

    /// Executes a task. While a flush of the claim's owner is running, a task of the owner that changes blocks waits
    /// for the end of that flush. The flushes to wait for are determined on arrival of the task, before the task waits
    /// for its turn.
    fn execute_in_order(&self, task: Task) -> UnitReply<'_> {
        let gate = &self.writers.flush_gate;
        let is_flush = self.is_flush(&task.cdb);
        if !is_flush && gate.is_open() || !self.is_epoch_of(task.nexus.number) {
            return self.execute_in_turn(task);
        }
        if is_flush {
            let flushing = gate.close();
            let flush = self.execute_in_turn(task);
            return UnitReply::new(async move {
                let flushed = flush.await;
                drop(flushing);
                flushed
            });
        }
        // A part of a copy must not wait: the copy itself has waited, and a flush may be waiting for the end of the
        // copy.
        let is_part = task.attribute == TaskAttribute::Nested;
        let changes = |command: &Command| {
            ownership::changes(command)
                || matches!(command, Command::Primary(PrimaryCommand::ExtendedCopy { .. }))
        };
        let is_change = match &task.admitted {
            Some(AdmittedCommand { command: ParsedCommand::Known(command), .. }) => {
                changes(command)
            }
            _ => Command::parse(&task.cdb).as_ref().is_ok_and(changes),
        };
        if is_part || !is_change {
            return self.execute_in_turn(task);
        }
        UnitReply::new(async move {
            gate.opened().await;
            self.execute_in_turn(task).await
        })
    }

    /// Returns true if this nexus is the claim's owner and the volume has epochs, so that flushes of this
    /// nexus end epochs.
    fn is_epoch_of(&self, nexus: u64) -> bool {
        self.writers.ownership.as_ref().is_some_and(|ownership| ownership.is_holder(nexus))
            && self.geometry().epoch_blocks > 0
    }

    fn execute_in_turn(&self, task: Task) -> UnitReply<'_> {
        self.primary.in_turn(task, |task, turn| self.start(task, turn))
    }

    /// Executes a task and reports sense data in descriptor format (D_SENSE=1).
    fn execute_with_descriptors(&self, task: Task) -> UnitReply<'_> {
        let answer = self.execute_in_order(task);
        UnitReply::new(async move {
            let mut completion = answer.await;
            if let Some(sense) = &mut completion.sense {
                sense.descriptor_format = true;
            }
            completion
        })
    }
}

impl LogicalUnit for BlockUnit {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        if self.primary.modes.current().descriptor_sense {
            return self.execute_with_descriptors(task);
        }
        self.execute_in_order(task)
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        data_out_length: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        let admitted = self.check_admission(nexus, cdb, data_out_length);
        admitted.map(Some).map_err(|mut refusal| {
            if let Some(sense) = &mut refusal.sense {
                sense.descriptor_format = self.primary.modes.current().descriptor_sense;
            }
            refusal
        })
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        if function.is_reset() {
            self.medium.reset();
        }
        self.primary.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.primary.nexus_opened(nexus);
    }

    fn nexus_reaches(&self, nexus: &Nexus, neighbours: Arc<dyn Neighbours>) {
        self.primary.nexus_reaches(nexus, neighbours);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.primary.nexus_closed(nexus);
        self.copies.close(nexus.number);
        self.writers.close(nexus.number);
        self.medium.keep(nexus.number, false);
    }

    fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        self.primary.change_attention(nexus, condition, change);
    }

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities {
            copies: Some(self),
            claims: Some(self),
            moves: Some(self),
            flushes: Some(self),
            descriptor_sense_only: false,
        }
    }
}

impl FlushedUnit for BlockUnit {
    /// Returns true for SYNCHRONIZE CACHE (10) and (16).
    fn is_flush(&self, cdb: &[u8]) -> bool {
        matches!(cdb.first(), Some(0x35 | 0x91))
    }
}
