//! A disk: SBC over a `Volume`.

mod limits;
mod patience;
mod image;
mod ownership;
mod sharing;
mod medium_state;
mod mode_pages;
mod space;
mod description;
mod flush_gate;
mod claim;
mod copies;
mod access;
mod sanitizer;
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
mod reserve;
mod own;
mod share;
mod mode;
mod medium;
mod maintenance;

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use scsi::{
    BlockCommand, BlockTransfer, Command, PersistentReserveOut, PrimaryCommand, Sense,
    VendorCommand,
};
use volume::{Data, Geometry, Stack};

use self::bounds::{at_once, check_list_length, taking, writable};
pub use self::limits::{Settings, Share};
use crate::{
    AttentionChange, Completion, LogicalUnit, Neighbours, Nexus, Task, TaskAttribute,
    TaskManagement, UnitAbilities, UnitReply,
    block::{
        claim::BlockRangeLocks, copies::Copies, flush_gate::Gate, medium_state::Medium,
        ownership::Ownership, sanitizer::Sanitizer, sharing::UnitSharing, space::Threshold,
    },
    identity::UnitIdentity,
    primary::{
        attention::Attentions,
        identifying::Identifying,
        modes::ModeSettings,
        order::{TaskOrder, TaskTurn},
        reservation::Reservations,
        timestamp::UnitClock,
    },
    sense::UnitCommandFailure,
    store::UnitStore,
    tokens::UnitRodTokens,
};

/// A block device whose blocks are a volume's.
///
/// Simple tasks run as they come, in no order among themselves.
pub struct BlockUnit {
    volume: Stack,
    identity: UnitIdentity,
    settings: Settings,
    /// How many blocks there were when somebody last looked: who sees another number tells all.
    known_blocks: AtomicU64,
    attentions: Attentions,
    reservations: Reservations,
    modes: ModeSettings,
    medium: Medium,
    threshold: Threshold,
    order: TaskOrder,
    gate: Gate,
    claims: BlockRangeLocks,
    tokens: UnitRodTokens,
    copies: Copies,
    /// What each nexus reaches beside this unit.
    reachable: Mutex<HashMap<u64, Arc<dyn Neighbours>>>,
    sanitizer: Arc<Sanitizer>,
    clock: UnitClock,
    /// `None` without a store.
    identifying: Option<Identifying>,
    /// `None` without a store.
    ownership: Option<Ownership>,
    /// `None`: it is not shared.
    sharing: Option<UnitSharing>,
}

/// What a unit keeps in its store.
struct StoredUnitState {
    reservations: Reservations,
    modes: ModeSettings,
    sanitizer: Arc<Sanitizer>,
    identifying: Option<Identifying>,
    ownership: Option<Ownership>,
    sharing: Option<UnitSharing>,
}

/// What a task brings besides its command.
struct BlockCommandInput<'a> {
    data: Data,
    geometry: Geometry,
    turn: TaskTurn<'a>,
    /// The session that it is of.
    nexus: u64,
}

impl BlockUnit {
    /// A unit of this name over `volume`, which forgets reservations and mode parameters with the
    /// process, and says so.
    #[must_use]
    pub fn new(volume: Stack, identity: UnitIdentity, settings: Settings) -> Self {
        let kept = StoredUnitState {
            reservations: Reservations::new(),
            modes: ModeSettings::new(),
            sanitizer: Arc::new(Sanitizer::new()),
            identifying: None,
            ownership: None,
            sharing: None,
        };
        Self::with(volume, identity, settings, kept)
    }

    /// A unit that goes on with what is in `store`: reservations, mode parameters,
    /// identifying information, and a sanitize that was not finished, for which it needs the runtime it is opened in.
    ///
    /// # Errors
    /// What is there cannot be read, or was not written by a unit.
    pub fn open(
        volume: Stack,
        identity: UnitIdentity,
        settings: Settings,
        store: Arc<dyn UnitStore>,
    ) -> io::Result<Self> {
        let ownership = Ownership::load(Arc::clone(&store))?;
        let sharing = match settings.share {
            Some(_) if volume.geometry().epoch_blocks > 0 => {
                let message = "it cannot be shared with a cache of its own whose writes count with the next flush";
                return Err(io::Error::other(message));
            }
            Some(share) => {
                let geometry = volume.geometry();
                Some(UnitSharing::load(share, &geometry, Arc::clone(&store), ownership.last())?)
            }
            None if UnitSharing::is_left(&*store)? => {
                let message = "several gateways share it still: stop them first, or share it again";
                return Err(io::Error::other(message));
            }
            None => None,
        };
        let kept = StoredUnitState {
            sharing,
            reservations: Reservations::load(Arc::clone(&store))?,
            modes: ModeSettings::load(Arc::clone(&store))?,
            identifying: Some(Identifying::load(Arc::clone(&store))?),
            ownership: Some(ownership),
            sanitizer: Sanitizer::load(store, &volume)?,
        };
        Ok(Self::with(volume, identity, settings, kept))
    }

    fn with(
        volume: Stack,
        identity: UnitIdentity,
        settings: Settings,
        kept: StoredUnitState,
    ) -> Self {
        let StoredUnitState { reservations, modes, sanitizer, identifying, ownership, sharing } =
            kept;
        let known_blocks = AtomicU64::new(volume.geometry().blocks);
        Self {
            volume,
            identity,
            settings,
            known_blocks,
            attentions: Attentions::default(),
            reservations,
            modes,
            medium: Medium::default(),
            threshold: Threshold::new(settings.soft_threshold_percent),
            order: TaskOrder::default(),
            gate: Gate::default(),
            claims: BlockRangeLocks::default(),
            tokens: UnitRodTokens::default(),
            copies: Copies::default(),
            reachable: Mutex::default(),
            sanitizer,
            clock: UnitClock::default(),
            identifying,
            ownership,
            sharing,
        }
    }

    /// The unit's names.
    #[must_use]
    pub fn identity(&self) -> &UnitIdentity {
        &self.identity
    }

    /// The volume that holds its blocks.
    #[must_use]
    pub fn volume(&self) -> &Stack {
        &self.volume
    }

    /// Everything up to the first call on the volume. `Err`: the task ends here, refused or
    /// because there is nothing to do.
    fn start<'a>(&'a self, task: Task, turn: TaskTurn<'a>) -> Result<UnitReply<'a>, Completion> {
        if matches!(task.cdb.first(), Some(0x00 | 0x25 | 0x9e)) {
            // Who asks for capacity or readiness wants to hear of another size: initiators do
            // before they use it, and path checkers all the time.
            self.volume.extensions().refresh();
        }
        let geometry = self.geometry();
        let command = self.command(&task.nexus, &task.cdb, task.attribute)?;
        let room = task.data_in_capacity;
        let nexus = task.nexus.number;
        let work = BlockCommandInput { data: task.data_out, geometry, turn, nexus };
        if let Some(ownership) = &self.ownership
            && ownership::needs_a_flush(&command)
        {
            ownership.note_change(nexus);
        }
        match command {
            Command::Block(BlockCommand::Read(transfer)) => self.read(transfer, room, work),
            Command::Block(BlockCommand::Write(transfer)) => self.write(transfer, work),
            Command::Block(BlockCommand::WriteAndVerify { transfer, byte_check }) => {
                self.write_and_verify(transfer, byte_check, work)
            }
            Command::Block(BlockCommand::Verify { transfer, byte_check }) => {
                self.verify(transfer, byte_check, work)
            }
            Command::Block(BlockCommand::CompareAndWrite(transfer)) => {
                self.compare_and_write(transfer, work)
            }
            Command::Block(BlockCommand::OrWrite(transfer)) => self.or_write(transfer, work),
            Command::Block(BlockCommand::WriteAtomic { transfer, boundary }) => {
                self.write_atomic(transfer, boundary, work)
            }
            Command::Block(BlockCommand::PreFetch { transfer, immediate }) => {
                self.pre_fetch(transfer, immediate, work)
            }
            Command::Block(BlockCommand::GetLbaStatus { lba, allocation_length }) => {
                self.get_lba_status(lba, allocation_length, work)
            }
            Command::Block(BlockCommand::Sanitize(asked)) => self.sanitize(asked, work),
            Command::Primary(PrimaryCommand::ExtendedCopy { long, parameter_list_length }) => {
                self.extended_copy(task.nexus, long, parameter_list_length, work)
            }
            Command::Block(BlockCommand::PopulateToken { list, parameter_list_length }) => {
                self.populate_token(task.nexus, list, parameter_list_length, work)
            }
            Command::Block(BlockCommand::WriteUsingToken { list, parameter_list_length }) => {
                self.write_using_token(task.nexus, list, parameter_list_length, work)
            }
            Command::Primary(PrimaryCommand::CopyOperationAbort { list }) => {
                self.abort_copy(&task.nexus, list, work)
            }
            Command::Primary(PrimaryCommand::ReceiveCopyResults { results, allocation_length }) => {
                Err(self.receive_copy_results(
                    &task.nexus,
                    results,
                    allocation_length,
                    &geometry,
                )?)
            }
            Command::Block(BlockCommand::SynchronizeCache { transfer, .. }) => {
                self.synchronize_cache(&task.nexus, transfer, work)
            }
            Command::Vendor(VendorCommand::RollBack) => self.roll_back(work),
            Command::Block(BlockCommand::Unmap { parameter_list_length, .. }) => {
                self.check_unmap(&command, &geometry)?;
                self.unmap(usize::from(parameter_list_length), work)
            }
            Command::Block(BlockCommand::WriteSame { .. }) => {
                let write_same = self.check_write_same(&command, &geometry)?;
                self.write_same(write_same, work)
            }
            Command::Block(BlockCommand::StartStop(start_stop)) => {
                self.start_stop(&task.nexus, start_stop, work)
            }
            Command::Block(BlockCommand::PreventAllow { prevent }) => {
                self.medium.keep(task.nexus.number, prevent);
                Err(taking(0))
            }
            Command::Primary(PrimaryCommand::ModeSelect(select)) => {
                self.mode_select(task.nexus, select, work)
            }
            Command::Primary(PrimaryCommand::Reserve { .. }) => {
                self.reservations.reserve(&task.nexus)?;
                Err(taking(0))
            }
            Command::Primary(PrimaryCommand::Release { .. }) => {
                self.reservations.release(&task.nexus)?;
                Err(taking(0))
            }
            Command::Primary(PrimaryCommand::PersistentReserveOut(asked)) => {
                self.persistent_reserve_out(task.nexus, asked, work)
            }
            Command::Vendor(VendorCommand::ClaimOut { action, parameter_list_length }) => {
                self.claim_out(&task.nexus, action, parameter_list_length, work)
            }
            Command::Vendor(VendorCommand::TokenIn { wait_ms, allocation_length }) => {
                self.token_in(wait_ms, allocation_length.min(room), work)
            }
            Command::Vendor(VendorCommand::TokenOut { parameter_list_length }) => {
                self.token_out(parameter_list_length, work)
            }
            Command::Primary(PrimaryCommand::LogSelect(select)) => self.log_select(select, work),
            Command::Primary(PrimaryCommand::SetTargetPortGroups { parameter_list_length }) => {
                self.set_target_port_groups(parameter_list_length, work)
            }
            Command::Primary(PrimaryCommand::SetTimestamp { parameter_list_length }) => {
                Err(self.set_timestamp(&task.nexus, parameter_list_length, &work)?)
            }
            Command::Primary(PrimaryCommand::SetIdentifying { kind, parameter_list_length }) => {
                self.set_identifying(&task.nexus, kind, parameter_list_length, work)
            }
            _ => Err(self.describe(&task.nexus, &command, geometry)?),
        }
    }

    /// The command in a CDB, unless the nexus has first to be told of something else.
    fn command(
        &self,
        nexus: &Nexus,
        cdb: &[u8],
        attribute: TaskAttribute,
    ) -> Result<Command, Completion> {
        let command = Command::parse(cdb);
        // These three are answered in any case (SPC-4, 5.14: INQUIRY, REPORT LUNS, REQUEST SENSE).
        let unconditional = matches!(
            command,
            Ok(Command::Primary(PrimaryCommand::Inquiry { .. })
                | Command::Primary(PrimaryCommand::ReportLuns { .. })
                | Command::Primary(PrimaryCommand::RequestSense { .. }))
        );
        if unconditional {
            return Ok(command?);
        }
        let is_nested = attribute == TaskAttribute::Nested;
        // In the order of SAM-5, 5.3.3.
        if !is_nested && let Some(reset) = self.attentions.take_reset(nexus.number) {
            return Err(reset.into());
        }
        if let Ok(command) = &command
            && self.reservations.bar(nexus.number, command)
        {
            return Err(UnitCommandFailure::Conflict.into());
        }
        if let (Ok(command), Some(sharing)) = (&command, &self.sharing) {
            let beside = self.settings.reads_beside_claim;
            if let Some(failure) = sharing.bar(nexus.number, command, beside) {
                return Err(failure.into());
            }
        } else if let (Ok(command), Some(ownership)) = (&command, &self.ownership) {
            let beside = self.settings.reads_beside_claim;
            let has_epochs = || self.volume.geometry().epoch_blocks > 0;
            if let Some(failure) = ownership.bar(nexus.number, command, beside, has_epochs) {
                return Err(failure.into());
            }
        }
        if !is_nested && let Some(condition) = self.attentions.take(nexus.number) {
            return Err(condition.into());
        }
        // After a failure another SANITIZE may mend it (SBC-3, 4.11.4).
        if let Some(sense) = self.sanitizer.sense()
            && (self.sanitizer.is_running()
                || !matches!(command, Ok(Command::Block(BlockCommand::Sanitize(_)))))
        {
            return Err(Completion::check_condition(sense));
        }
        let command = command?;
        if self.settings.is_one_of_many && own::is_for_all(&command) {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE.into());
        }
        self.medium.check(&command)?;
        Ok(command)
    }

    /// The volume's geometry; a size that changed is told to every nexus. Software write protect
    /// makes it read-only.
    fn geometry(&self) -> Geometry {
        let mut geometry = self.volume.geometry();
        geometry.read_only |= self.modes.current().write_protect;
        if self.known_blocks.load(Ordering::Relaxed) != geometry.blocks
            && self.known_blocks.swap(geometry.blocks, Ordering::Relaxed) != geometry.blocks
        {
            self.attentions.raise(Sense::CAPACITY_DATA_HAS_CHANGED, None);
        }
        geometry
    }

    /// What would refuse a command that brings this much data.
    fn refusal(&self, nexus: &Nexus, cdb: &[u8], data_out_length: u32) -> Result<(), Completion> {
        let geometry = self.geometry();
        let command = self.command(nexus, cdb, TaskAttribute::Simple)?;
        let bytes = match command {
            Command::Block(BlockCommand::Write(transfer))
            | Command::Block(BlockCommand::WriteAndVerify { transfer, .. }) => {
                self.bytes_to_write(&transfer, &geometry)?.min(data_out_length)
            }
            Command::Block(BlockCommand::OrWrite(transfer)) => {
                let bytes = self.bytes_to_write(&transfer, &geometry)?.min(data_out_length);
                bytes.min(access::PIECE as u32)
            }
            Command::Block(BlockCommand::CompareAndWrite(transfer)) => {
                let extent = self.check_compare_and_write(&transfer, &geometry)?;
                extent.map_or(0, |e| e.blocks) * geometry.block_size
            }
            Command::Block(BlockCommand::WriteAtomic { transfer, boundary }) => {
                let extent = self.check_write_atomic(&transfer, boundary, &geometry)?;
                extent.map_or(0, |e| e.blocks) * geometry.block_size
            }
            Command::Block(BlockCommand::WriteSame { .. }) => {
                // Such a command is executed a piece at a time, so the volume needs room for one piece.
                let extent = self.check_write_same(&command, &geometry)?.extent;
                let bytes = extent.map_or(0, |e| e.blocks) * geometry.block_size;
                bytes.min(access::PIECE as u32)
            }
            Command::Block(BlockCommand::Sanitize(asked)) => {
                return Ok(self.check_sanitize(&asked, &geometry)?);
            }
            Command::Block(BlockCommand::Unmap { .. }) => {
                return Ok(self.check_unmap(&command, &geometry)?);
            }
            Command::Primary(PrimaryCommand::PersistentReserveOut(PersistentReserveOut {
                parameter_list_length,
                ..
            }))
            | Command::Primary(PrimaryCommand::SetTargetPortGroups { parameter_list_length })
            | Command::Primary(PrimaryCommand::SetTimestamp { parameter_list_length }) => {
                return Ok(check_list_length(parameter_list_length)?);
            }
            _ => return Ok(()),
        };
        // Nothing was done yet, whatever the failure.
        self.volume.admit(bytes as usize).map_err(|error| access::failed_flush(error).into())
    }

    fn bytes_to_write(&self, transfer: &BlockTransfer, geometry: &Geometry) -> Result<u32, Sense> {
        writable(geometry)?;
        let extent = self.extent(transfer, geometry)?;
        Ok(extent.map_or(0, |extent| extent.blocks * geometry.block_size))
    }

    /// Executes a task. A change by the claim's owner waits for a flush of the owner that arrived before it. This is
    /// decided when the command arrives, before it waits for anything else.
    fn execute_in_order(&self, task: Task) -> UnitReply<'_> {
        let is_flush = matches!(task.cdb.first(), Some(0x35 | 0x91));
        if !is_flush && self.gate.is_open() || !self.is_epoch_of(task.nexus.number) {
            return self.execute_in_turn(task);
        }
        if is_flush {
            let flushing = self.gate.close();
            let flush = self.execute_in_turn(task);
            return UnitReply::new(async move {
                let flushed = flush.await;
                drop(flushing);
                flushed
            });
        }
        // A part of a copy must not wait: the copy itself has waited, and a flush may be waiting for the end of the copy.
        let is_part = task.attribute == TaskAttribute::Nested;
        let changes = |command: &Command| {
            ownership::changes(command)
                || matches!(command, Command::Primary(PrimaryCommand::ExtendedCopy { .. }))
        };
        if is_part || !Command::parse(&task.cdb).as_ref().is_ok_and(changes) {
            return self.execute_in_turn(task);
        }
        UnitReply::new(async move {
            self.gate.opened().await;
            self.execute_in_turn(task).await
        })
    }

    /// Returns true if this nexus is the claim's owner, so that its flushes end the volume's epochs.
    fn is_epoch_of(&self, nexus: u64) -> bool {
        self.ownership.as_ref().is_some_and(|ownership| ownership.is_holder(nexus))
            && self.geometry().epoch_blocks > 0
    }

    fn execute_in_turn(&self, task: Task) -> UnitReply<'_> {
        match self.order.turn_now(task.attribute) {
            Some(turn) => self.start(task, turn).unwrap_or_else(at_once),
            None => UnitReply::new(async move {
                let turn = self.order.turn(task.attribute).await;
                self.start(task, turn).unwrap_or_else(at_once).await
            }),
        }
    }

    /// The same with sense data in descriptor format (D_SENSE=1).
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

    /// What a reset does, whoever asked for it, before it is told.
    fn reset(&self) {
        self.reservations.reset();
        self.modes.reset();
        self.medium.reset();
    }
}

impl LogicalUnit for BlockUnit {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        if self.modes.current().descriptor_sense {
            return self.execute_with_descriptors(task);
        }
        self.execute_in_order(task)
    }

    fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        match change {
            AttentionChange::Raise => self.attentions.raise_to(condition, nexus.number),
            AttentionChange::Withdraw => self.attentions.withdraw(condition, nexus.number),
        }
    }

    fn admit(&self, nexus: &Nexus, cdb: &scsi::Cdb, data_out_length: u32) -> Option<Completion> {
        let mut refusal = self.refusal(nexus, cdb, data_out_length).err()?;
        if let Some(sense) = &mut refusal.sense {
            sense.descriptor_format = self.modes.current().descriptor_sense;
        }
        Some(refusal)
    }

    /// SAM-5, 5.14 and 7: a reset is told to all, also to who asked for it; a cleared task set to
    /// all others, since which of them had tasks in it is not known here.
    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        match function {
            TaskManagement::LogicalUnitReset => {
                self.reset();
                self.attentions.raise(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED, None);
            }
            TaskManagement::TargetWarmReset | TaskManagement::TargetColdReset => {
                self.reset();
                self.clock.reset();
                self.attentions.raise(Sense::SCSI_BUS_RESET_OCCURRED, None);
            }
            TaskManagement::ClearTaskSet => {
                let cleared = Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR;
                self.attentions.raise(cleared, Some(nexus.number));
            }
            TaskManagement::AbortTask | TaskManagement::AbortTaskSet | TaskManagement::ClearAca => {
            }
        }
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        self.reservations.open(nexus);
        self.attentions.open(nexus.number);
    }

    fn nexus_reaches(&self, nexus: &Nexus, neighbours: Arc<dyn Neighbours>) {
        self.reachable.lock().insert(nexus.number, neighbours);
    }

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities { copies: Some(self), claims: Some(self), moves: Some(self) }
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.attentions.close(nexus.number);
        self.reachable.lock().remove(&nexus.number);
        self.copies.close(nexus.number);
        self.reservations.close(nexus.number);
        if let Some(ownership) = &self.ownership {
            ownership.close(nexus.number);
        }
        if let Some(sharing) = &self.sharing {
            sharing.close(nexus.number);
        }
        self.medium.keep(nexus.number, false);
    }
}
