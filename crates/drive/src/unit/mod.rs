//! A logical unit of type 11h (object storage device) over a store.
//!
//! A command passes these modules in turn: the gate of [`unit::gate`] (reservations, unit attentions), the ranges of
//! its parts in the buffers (`layout`), the check of its capability (`security`), its data (`data_out`), the store, and
//! its answer (`data_in`, or `sense`).

mod layout;
mod command;
mod operations;
mod sense;
mod performed;
mod data_out;
mod data_in;
mod own_attributes;
mod description;
mod accessors;
mod performing;
mod run;

use std::{
    collections::HashMap,
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use osd::{AttributeParameters, OsdCdb, Refusal, ServiceAction};
use parking_lot::Mutex;
use scsi::{AdmittedCommand, Cdb, PrimaryCommand, Sense};
use unit::{
    AttentionChange, Completion, DeviceCommand as _, FlushedUnit, LogicalUnit, Neighbours, Nexus,
    PrimaryCommandInput, PrimaryUnit, ReservationEffect, Task, TaskManagement, TaskTurn,
    UnitAbilities, UnitReply, check_parameter_list, gate,
};
use volume::Data;

pub use self::layout::ListLimits;
use self::{
    command::{ObjectCommand, UnitCommand},
    description::TOKEN_BYTES,
    layout::OutLayout,
    performed::PerformedCounters,
    run::ObjectWork,
    sense::Failure,
};
use crate::{
    backing::DriveBacking,
    security::{Refused, Security},
};

/// A logical unit that is an object storage device, and keeps its objects in a store.
pub struct ObjectUnit<S> {
    primary: PrimaryUnit,
    drive: Arc<Drive<S>>,
    limits: ListLimits,
    /// The security token of each nexus, by the number of the nexus. A proof of the method CAPKEY is valid only with
    /// the token of its session.
    tokens: Mutex<HashMap<u64, [u8; TOKEN_BYTES]>>,
    performed: PerformedCounters,
}

/// The store of a drive, and the check of capabilities in front of it.
struct Drive<S> {
    store: Arc<S>,
    security: Security,
}

impl<S: DriveBacking> ObjectUnit<S> {
    #[must_use]
    pub fn new(
        primary: PrimaryUnit,
        store: Arc<S>,
        security: Security,
        limits: ListLimits,
    ) -> Self {
        let drive = Arc::new(Drive { store, security });
        Self {
            primary,
            drive,
            limits,
            tokens: Mutex::default(),
            performed: PerformedCounters::default(),
        }
    }

    /// Begins a task: checks reservations and unit attentions, and starts the command.
    fn start<'a>(&'a self, task: Task, turn: TaskTurn<'a>) -> Result<UnitReply<'a>, Completion> {
        let command = gate::begin(&self.primary, self, &task)?;
        let Task { nexus, data_out, data_in_capacity, .. } = task;
        match command {
            UnitCommand::Primary(command) => self.start_primary(nexus, &command, data_out, turn),
            UnitCommand::Object(command) => {
                self.performed.count(command.cdb.service_action());
                let capacity = u64::from(data_in_capacity);
                let work = ObjectWork { nexus, command, data_out, capacity };
                Ok(UnitReply::new(self.run(work, turn)))
            }
        }
    }

    fn start_primary<'a>(
        &'a self,
        nexus: Nexus,
        command: &PrimaryCommand,
        data: Data,
        turn: TaskTurn<'a>,
    ) -> Result<UnitReply<'a>, Completion> {
        match command {
            PrimaryCommand::ModeSense(asked) => Err(self.primary.mode_sense(self, asked)?),
            PrimaryCommand::ModeSelect(select) => {
                self.primary.mode_select(self, nexus, *select, &data, turn)
            }
            _ => {
                let description = self.description(nexus.number);
                let input = PrimaryCommandInput { nexus, data, turn };
                self.primary.start(&description, command, input)
            }
        }
    }

    /// Checks an object command before its data is requested. If the check would have to wait for the store, the
    /// command is admitted unchecked: all checks are made again when it is executed.
    fn admit_object(
        &self,
        nexus: u64,
        command: &ObjectCommand,
        data_out_length: u32,
    ) -> Result<(), Completion> {
        let check = pin!(self.check_early(nexus, command, data_out_length));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(checked) => checked,
            Poll::Pending => Ok(()),
        }
    }

    async fn check_early(
        &self,
        nexus: u64,
        command: &ObjectCommand,
        data_out_length: u32,
    ) -> Result<(), Completion> {
        let Drive { store, security } = &*self.drive;
        let ObjectCommand { cdb, bytes, proof } = command;
        let object = cdb.command.object();
        let refuse =
            |refused: Refused, proof| self.refuse(refused).completion(object, proof, Data::new());
        let proved = security.prove(&**store, cdb, bytes, &self.token(nexus)).await;
        let proved = proved.map_err(|refused| refuse(refused, None))?;
        let signer = Some((&proved, cdb.nonce));
        security.judge(&**store, cdb, &proved).await.map_err(|refused| refuse(refused, signer))?;
        let fail = |failure: Failure| failure.completion(object, signer, Data::new());
        let layout = OutLayout::new(cdb, proved.method, &self.limits);
        let layout = layout.map_err(|refusal| fail(refusal.into()))?;
        if u64::from(data_out_length) < layout.end {
            return Err(fail(Refusal::ParameterListLength.into()));
        }
        store.check_room(&cdb.command).await.map_err(|error| fail(error.into()))?;
        // Ignore an error: a second call for the same command would find the same proof.
        let _ = proof.set(proved);
        Ok(())
    }
}

impl<S: DriveBacking> gate::GatedDevice for ObjectUnit<S> {
    type Command = UnitCommand;

    fn parse(&self, cdb: &[u8]) -> Result<UnitCommand, Sense> {
        let command = UnitCommand::parse(cdb)?;
        match &command {
            UnitCommand::Object(object)
                if !self.drive.store.serves(object.cdb.service_action()) =>
            {
                Err(Sense::INVALID_COMMAND_OPERATION_CODE)
            }
            _ => Ok(command),
        }
    }

    fn check_medium(&self, command: &UnitCommand) -> Result<(), Sense> {
        let UnitCommand::Object(_) = command else { return Ok(()) };
        if command.effect() == ReservationEffect::Changes
            && self.primary.current_modes().write_protect
        {
            return Err(Sense::LOGICAL_UNIT_SOFTWARE_WRITE_PROTECTED);
        }
        Ok(())
    }
}

impl<S: DriveBacking> LogicalUnit for ObjectUnit<S> {
    fn execute(&self, task: Task) -> UnitReply<'_> {
        self.primary
            .in_turn(task, |task, turn| self.start(task, turn).map_err(with_descriptor_sense))
    }

    fn admit(
        &self,
        nexus: &Nexus,
        cdb: &Cdb,
        data_out_length: u32,
    ) -> Result<Option<AdmittedCommand>, Completion> {
        let admitted = gate::admit(&self.primary, self, nexus, cdb);
        let (command, admitted) = admitted.map_err(with_descriptor_sense)?;
        match &command {
            UnitCommand::Primary(command) => check_parameter_list(command)
                .map_err(|sense| with_descriptor_sense(sense.into()))?,
            UnitCommand::Object(command) => {
                self.admit_object(nexus.number, command, data_out_length)?;
            }
        }
        Ok(Some(admitted))
    }

    fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        self.primary.task_management(nexus, function);
    }

    fn nexus_opened(&self, nexus: &Nexus) {
        let mut token = [0; TOKEN_BYTES];
        getrandom::fill(&mut token).expect("the operating system has random bytes");
        self.tokens.lock().insert(nexus.number, token);
        self.primary.nexus_opened(nexus);
    }

    fn nexus_reaches(&self, nexus: &Nexus, neighbours: Arc<dyn Neighbours>) {
        self.primary.nexus_reaches(nexus, neighbours);
    }

    fn nexus_closed(&self, nexus: &Nexus) {
        self.tokens.lock().remove(&nexus.number);
        self.primary.nexus_closed(nexus);
    }

    fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        self.primary.change_attention(nexus, condition, change);
    }

    fn abilities(&self) -> UnitAbilities<'_> {
        UnitAbilities {
            flushes: Some(self),
            descriptor_sense_only: true,
            ..UnitAbilities::default()
        }
    }
}

impl<S: DriveBacking> FlushedUnit for ObjectUnit<S> {
    /// Returns true for a flush without attributes lists, which has no data in either direction.
    fn is_flush(&self, cdb: &[u8]) -> bool {
        let action = match cdb {
            [osd::OPERATION_CODE, _, _, _, _, _, _, _, high, low, ..] => {
                ServiceAction::from_code(u16::from_be_bytes([*high, *low]))
            }
            _ => None,
        };
        let is_flush = matches!(
            action,
            Some(
                ServiceAction::Flush
                    | ServiceAction::FlushCollection
                    | ServiceAction::FlushPartition
                    | ServiceAction::FlushOsd
            )
        );
        is_flush && OsdCdb::parse(cdb).is_ok_and(|cdb| cdb.attributes == AttributeParameters::NONE)
    }
}

/// Object storage devices report all sense data in descriptor format.
fn with_descriptor_sense(mut completion: Completion) -> Completion {
    if let Some(sense) = &mut completion.sense {
        sense.descriptor_format = true;
    }
    completion
}

#[cfg(test)]
mod tests;
