//! A disk: SBC over a `Volume`.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use scsi::{ByteCheck, Command, Form, Sense, Transfer, parse_unmap_list};
use smallvec::SmallVec;
use volume::{Data, Durability, Extent, Geometry, Lba, Stack};

use crate::{
    Completion, LogicalUnit, Nexus, Task, TaskManagement,
    access::{self, Against, Answer},
    attention::Attentions,
    description::Description,
    identity::Identity,
    limits::{Limits, Settings},
    order::{Order, Turn},
    sense::Failure,
};

/// A block device whose blocks are a volume's.
///
/// Simple tasks run as they come, in no order among themselves.
pub struct BlockUnit {
    volume: Stack,
    identity: Identity,
    settings: Settings,
    /// How many blocks there were when somebody last looked: who sees another number tells all.
    known_blocks: AtomicU64,
    attentions: Attentions,
    order: Order,
}

/// What a task brings besides its command.
struct Work<'a> {
    data: Data,
    geometry: Geometry,
    turn: Turn<'a>,
}

/// What a WRITE SAME is going to do.
struct WriteSame {
    /// `None`: zero blocks, at the very end.
    extent: Option<Extent>,
    unmap: bool,
    no_data_out: bool,
}

impl BlockUnit {
    /// A unit of this name over `volume`.
    #[must_use]
    pub fn new(volume: Stack, identity: Identity, settings: Settings) -> Self {
        let known_blocks = AtomicU64::new(volume.geometry().blocks);
        Self {
            volume,
            identity,
            settings,
            known_blocks,
            attentions: Attentions::default(),
            order: Order::default(),
        }
    }

    /// The unit's names.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The volume that holds its blocks.
    #[must_use]
    pub fn volume(&self) -> &Stack {
        &self.volume
    }

    /// Everything up to the first call on the volume. `Err`: the task ends here, refused or
    /// because there is nothing to do.
    fn start<'a>(&'a self, task: Task, turn: Turn<'a>) -> Result<Answer<'a>, Completion> {
        let geometry = self.geometry();
        let command = self.command(&task.nexus, &task.cdb)?;
        let work = Work { data: task.data_out, geometry, turn };
        match command {
            Command::Read(transfer) => self.read(transfer, work),
            Command::Write(transfer) => self.write(transfer, work),
            Command::WriteAndVerify { transfer, byte_check } => {
                self.write_and_verify(transfer, byte_check, work)
            }
            Command::Verify { transfer, byte_check } => self.verify(transfer, byte_check, work),
            Command::SynchronizeCache { transfer, .. } => self.synchronize_cache(transfer, work),
            Command::Unmap { parameter_list_length, .. } => {
                self.check_unmap(&command, &geometry)?;
                self.unmap(usize::from(parameter_list_length), work)
            }
            Command::WriteSame { .. } => {
                let write_same = self.check_write_same(&command, &geometry)?;
                self.write_same(write_same, work)
            }
            _ => Err(self.describe(&task.nexus, &command, geometry)?),
        }
    }

    /// The command in a CDB, unless the nexus has first to be told of something else.
    fn command(&self, nexus: &Nexus, cdb: &[u8]) -> Result<Command, Completion> {
        let command = Command::parse(cdb);
        // These three are answered in any case (SPC-4, 5.14: INQUIRY, REPORT LUNS, REQUEST SENSE).
        let unconditional = matches!(
            command,
            Ok(Command::Inquiry { .. } | Command::ReportLuns { .. } | Command::RequestSense { .. })
        );
        if !unconditional && let Some(condition) = self.attentions.take(nexus.number) {
            return Err(Completion::check_condition(condition));
        }
        Ok(command?)
    }

    /// The volume's geometry; a size that changed is told to every nexus.
    fn geometry(&self) -> Geometry {
        let geometry = self.volume.geometry();
        if self.known_blocks.load(Ordering::Relaxed) != geometry.blocks
            && self.known_blocks.swap(geometry.blocks, Ordering::Relaxed) != geometry.blocks
        {
            self.attentions.raise(Sense::CAPACITY_DATA_HAS_CHANGED, None);
        }
        geometry
    }

    fn limits(&self, geometry: &Geometry) -> Limits {
        Limits::new(&self.settings, geometry)
    }

    /// The commands that need no call on the volume.
    fn describe(
        &self,
        nexus: &Nexus,
        command: &Command,
        geometry: Geometry,
    ) -> Result<Completion, Sense> {
        let limits = self.limits(&geometry);
        let description = Description { identity: &self.identity, geometry, limits };
        let (bytes, allocation_length) = match *command {
            Command::TestUnitReady => (Vec::new(), 0),
            Command::RequestSense { descriptor_format, allocation_length } => {
                let sense = self.attentions.take(nexus.number).unwrap_or(Sense::NO_SENSE);
                let bytes = if descriptor_format {
                    sense.to_descriptor_bytes()
                } else {
                    sense.to_fixed_bytes()
                };
                (bytes, u32::from(allocation_length))
            }
            Command::Inquiry { page, allocation_length } => {
                (description.inquiry(page)?, u32::from(allocation_length))
            }
            Command::ModeSense(asked) => {
                (description.mode_sense(&asked)?, u32::from(asked.allocation_length))
            }
            Command::ReadCapacity10 => (description.capacity_10(), u32::MAX),
            Command::ReadCapacity16 { allocation_length } => {
                (description.capacity_16(), allocation_length)
            }
            Command::ReportSupportedOperationCodes { reporting, timeouts, allocation_length } => {
                (description.supported(reporting, timeouts)?, allocation_length)
            }
            // REPORT LUNS is the target's to answer: only it knows which units there are.
            _ => return Err(Sense::INVALID_COMMAND_OPERATION_CODE),
        };
        let mut bytes = Bytes::from(bytes);
        bytes.truncate(allocation_length as usize);
        Ok(Completion::good(bytes.into()))
    }

    fn read<'a>(&'a self, transfer: Transfer, work: Work<'a>) -> Result<Answer<'a>, Completion> {
        let Some(extent) = self.extent(&transfer, &work.geometry)? else {
            return Err(Completion::good(Data::new()));
        };
        let stable_first = transfer.fua && work.geometry.volatile_cache && !work.geometry.read_only;
        Ok(access::read(&*self.volume, extent, stable_first, work.turn))
    }

    fn write<'a>(&'a self, transfer: Transfer, work: Work<'a>) -> Result<Answer<'a>, Completion> {
        let (extent, data) = self.to_write(&transfer, work.data, &work.geometry)?;
        let taken = extent.blocks * work.geometry.block_size;
        let durability = if transfer.fua { Durability::Stable } else { Durability::Volatile };
        Ok(access::write(&*self.volume, extent.lba, data, durability, taken, work.turn))
    }

    fn write_and_verify<'a>(
        &'a self,
        transfer: Transfer,
        byte_check: ByteCheck,
        work: Work<'a>,
    ) -> Result<Answer<'a>, Completion> {
        let (extent, data) = self.to_write(&transfer, work.data, &work.geometry)?;
        let taken = extent.blocks * work.geometry.block_size;
        let compare = byte_check == ByteCheck::Data;
        let write = access::write_and_verify(&*self.volume, extent.lba, data, compare);
        Ok(finished(write, taken, work.turn))
    }

    /// Where a write goes, and what of its data goes there; or how it ends without one.
    fn to_write(
        &self,
        transfer: &Transfer,
        data: Data,
        geometry: &Geometry,
    ) -> Result<(Extent, Data), Completion> {
        writable(geometry)?;
        let extent = self.extent(transfer, geometry)?.ok_or_else(|| taking(0))?;
        let taken = extent.blocks * geometry.block_size;
        match whole_blocks(data, taken, geometry) {
            Ok(data) if data.is_empty() => Err(taking(taken)),
            Ok(data) => Ok((extent, data)),
            Err(sense) => Err(taking_with(taken, sense.into())),
        }
    }

    fn verify<'a>(
        &'a self,
        transfer: Transfer,
        byte_check: ByteCheck,
        work: Work<'a>,
    ) -> Result<Answer<'a>, Completion> {
        let Work { data, geometry, turn } = work;
        let Some(extent) = self.extent(&transfer, &geometry)? else {
            return Err(taking(0));
        };
        let (taken, against) = match byte_check {
            // Data that comes all the same is not looked at.
            ByteCheck::Medium => (0, Ok(Against::Nothing)),
            ByteCheck::Data => {
                let taken = extent.blocks * geometry.block_size;
                (taken, whole_blocks(data, taken, &geometry).map(Against::Data))
            }
            ByteCheck::Block => {
                (geometry.block_size, one_block(data, &geometry).map(Against::Block))
            }
        };
        Ok(match against {
            Ok(against) => finished(access::verify(&*self.volume, extent, against), taken, turn),
            Err(sense) => at_once(taking_with(taken, sense.into())),
        })
    }

    /// All that was written becomes stable, whichever blocks are named: a volume does not flush in
    /// parts. The status comes after it even with IMMED, which permits that.
    fn synchronize_cache<'a>(
        &'a self,
        transfer: Transfer,
        work: Work<'a>,
    ) -> Result<Answer<'a>, Completion> {
        in_range(transfer.lba, u64::from(transfer.blocks), &work.geometry)?;
        let flush = self.volume.flush();
        let flush = async move { flush.await.map_err(access::failed_write) };
        Ok(finished(flush, 0, work.turn))
    }

    fn check_unmap(&self, command: &Command, geometry: &Geometry) -> Result<(), Sense> {
        if !geometry.thin {
            return Err(Sense::INVALID_COMMAND_OPERATION_CODE);
        }
        if matches!(command, Command::Unmap { anchor: true, .. }) {
            return Err(Sense::invalid_bit_in_cdb(1, 0));
        }
        writable(geometry)
    }

    /// Looks at every descriptor before the first block is given back.
    fn unmap<'a>(&'a self, length: usize, work: Work<'a>) -> Result<Answer<'a>, Completion> {
        // A length of zero is no error (SBC-3, 5.28.1).
        if length == 0 {
            return Err(taking(0));
        }
        let taken = length as u32;
        if work.data.len() < length {
            return Err(taking_with(taken, Sense::PARAMETER_LIST_LENGTH_ERROR.into()));
        }
        let limits = self.limits(&work.geometry);
        let list = work.data.slice(0, length).into_bytes();
        let descriptors = parse_unmap_list(&list)?;
        if descriptors.len() > limits.unmap_descriptors as usize {
            return Err(Sense::invalid_field_in_parameter_list(2).into());
        }
        let mut extents = SmallVec::<[Extent; 4]>::new();
        let mut all = 0;
        for descriptor in descriptors {
            in_range(descriptor.lba, u64::from(descriptor.blocks), &work.geometry)?;
            all += u64::from(descriptor.blocks);
            if descriptor.blocks > 0 {
                extents.push(Extent { lba: Lba(descriptor.lba), blocks: descriptor.blocks });
            }
        }
        if all > u64::from(limits.unmap_blocks) {
            return Err(Sense::invalid_field_in_parameter_list(8).into());
        }
        let volume = &*self.volume;
        let discard = async move { access::discard(volume, &extents).await };
        Ok(finished(discard, taken, work.turn))
    }

    fn check_write_same(&self, command: &Command, geometry: &Geometry) -> Result<WriteSame, Sense> {
        let Command::WriteSame { transfer, unmap, anchor, no_data_out } = *command else {
            unreachable!("the caller matched it");
        };
        // An anchor keeps the space of a block that holds nothing: no volume can promise that.
        if anchor {
            return Err(Sense::invalid_bit_in_cdb(1, 4));
        }
        if unmap && !geometry.thin {
            return Err(Sense::invalid_bit_in_cdb(1, 3));
        }
        writable(geometry)?;
        let asked = u64::from(transfer.blocks);
        in_range(transfer.lba, asked, geometry)?;
        // Zero blocks means all that follow (WSNZ=0).
        let blocks = if asked == 0 { geometry.blocks - transfer.lba } else { asked };
        if blocks > u64::from(self.limits(geometry).maximum_blocks) {
            return Err(too_long(transfer.form));
        }
        let extent =
            (blocks > 0).then_some(Extent { lba: Lba(transfer.lba), blocks: blocks as u32 });
        Ok(WriteSame { extent, unmap, no_data_out })
    }

    fn write_same<'a>(
        &'a self,
        asked: WriteSame,
        work: Work<'a>,
    ) -> Result<Answer<'a>, Completion> {
        let Work { data, geometry, turn } = work;
        let (taken, block) = if asked.no_data_out {
            (0, Ok(Data::zeros(geometry.block_size as usize).into_bytes()))
        } else {
            (geometry.block_size, one_block(data, &geometry))
        };
        let block = match block {
            Ok(block) => block,
            Err(sense) => return Err(taking_with(taken, sense.into())),
        };
        let Some(extent) = asked.extent else { return Ok(at_once(taking(taken))) };
        let volume = &*self.volume;
        // A block may be given back only if it then reads as what was to be written.
        if asked.unmap && block.iter().all(|byte| *byte == 0) {
            let discard = async move { access::discard(volume, &[extent]).await };
            return Ok(finished(discard, taken, turn));
        }
        Ok(finished(access::write_same(volume, extent, block), taken, turn))
    }

    /// The blocks of a transfer, `None` if there are none.
    fn extent(&self, transfer: &Transfer, geometry: &Geometry) -> Result<Option<Extent>, Sense> {
        in_range(transfer.lba, u64::from(transfer.blocks), geometry)?;
        if transfer.blocks == 0 {
            return Ok(None);
        }
        // One division less than asking `limits` for blocks, on the way of every READ and WRITE.
        let bytes = u64::from(transfer.blocks) * u64::from(geometry.block_size);
        if bytes > u64::from(self.settings.maximum_transfer_bytes)
            && transfer.blocks > self.limits(geometry).maximum_blocks
        {
            return Err(too_long(transfer.form));
        }
        Ok(Some(Extent { lba: Lba(transfer.lba), blocks: transfer.blocks }))
    }

    /// What would refuse a command that brings this much data.
    fn refusal(&self, nexus: &Nexus, cdb: &[u8], data_out_length: u32) -> Result<(), Completion> {
        let geometry = self.geometry();
        let command = self.command(nexus, cdb)?;
        let bytes = match command {
            Command::Write(transfer) | Command::WriteAndVerify { transfer, .. } => {
                writable(&geometry)?;
                let blocks = self.extent(&transfer, &geometry)?.map_or(0, |e| e.blocks);
                (blocks * geometry.block_size).min(data_out_length)
            }
            Command::WriteSame { .. } => {
                let extent = self.check_write_same(&command, &geometry)?.extent;
                extent.map_or(0, |e| e.blocks) * geometry.block_size
            }
            Command::Unmap { .. } => return Ok(self.check_unmap(&command, &geometry)?),
            _ => return Ok(()),
        };
        self.volume.admit(bytes as usize).map_err(|error| access::failed_write(error).into())
    }
}

impl LogicalUnit for BlockUnit {
    fn execute(&self, task: Task) -> Answer<'_> {
        match self.order.turn_now(task.attribute) {
            Some(turn) => self.start(task, turn).unwrap_or_else(at_once),
            None => Box::pin(async move {
                let turn = self.order.turn(task.attribute).await;
                self.start(task, turn).unwrap_or_else(at_once).await
            }),
        }
    }

    fn admit(&self, nexus: &Nexus, cdb: &scsi::Cdb, data_out_length: u32) -> Option<Completion> {
        self.refusal(nexus, cdb, data_out_length).err()
    }

    /// SAM-5, 5.14 and 7: a reset is told to all, also to who asked for it; a cleared task set to
    /// all others, since which of them had tasks in it is not known here.
    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        match function {
            TaskManagement::LogicalUnitReset => {
                self.attentions.raise(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED, None);
            }
            TaskManagement::TargetWarmReset | TaskManagement::TargetColdReset => {
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
        self.attentions.open(nexus.number);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.attentions.close(nexus.number);
    }
}

fn at_once<'a>(completion: Completion) -> Answer<'a> {
    Box::pin(std::future::ready(completion))
}

/// Work that ends in GOOD or a failure, of a command that takes so many bytes.
fn finished<'a>(
    work: impl Future<Output = Result<(), Failure>> + Send + 'a,
    taken: u32,
    turn: Turn<'a>,
) -> Answer<'a> {
    Box::pin(async move {
        let _turn = turn;
        match work.await {
            Ok(()) => taking(taken),
            Err(failure) => taking_with(taken, failure),
        }
    })
}

/// GOOD, of a command that takes so many bytes.
fn taking(bytes: u32) -> Completion {
    Completion { data_out_length: Some(bytes), ..Completion::good(Data::new()) }
}

/// A failure of a command that takes so many bytes.
fn taking_with(bytes: u32, failure: Failure) -> Completion {
    Completion { data_out_length: Some(bytes), ..failure.into() }
}

fn writable(geometry: &Geometry) -> Result<(), Sense> {
    if geometry.read_only { Err(Sense::WRITE_PROTECTED) } else { Ok(()) }
}

fn in_range(lba: u64, blocks: u64, geometry: &Geometry) -> Result<(), Sense> {
    match lba.checked_add(blocks) {
        Some(end) if end <= geometry.blocks => Ok(()),
        _ => Err(Sense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE),
    }
}

/// More blocks than a command may ask for: 5/24/00, pointing at the length.
fn too_long(form: Form) -> Sense {
    Sense::invalid_field_in_cdb(match form {
        Form::Six => 4,
        Form::Ten => 7,
        Form::Twelve => 6,
        Form::Sixteen => 10,
    })
}

/// The first `taken` bytes of what came. Less is fine as long as it is whole blocks, since the
/// initiator announced no more and hears of the rest as a residual; of a part of a block nobody
/// could say where it belongs.
fn whole_blocks(data: Data, taken: u32, geometry: &Geometry) -> Result<Data, Sense> {
    let taken = taken as usize;
    if data.len() == taken {
        return Ok(data);
    }
    if data.len() > taken {
        return Ok(data.slice(0, taken));
    }
    if data.len().is_multiple_of(geometry.block_size as usize) {
        Ok(data)
    } else {
        Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }
}

/// Exactly one block.
fn one_block(data: Data, geometry: &Geometry) -> Result<Bytes, Sense> {
    if data.len() == geometry.block_size as usize {
        Ok(data.into_bytes())
    } else {
        Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)
    }
}
