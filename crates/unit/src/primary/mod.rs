//! The part of a unit that does not depend on its device type: the commands of SPC, reservations, unit attention
//! conditions, mode parameters and the order of tasks.

mod effect;
mod attention;
mod reservation;
pub(crate) mod modes;
mod timestamp;
mod identifying;
pub(crate) mod order;
pub(crate) mod reply;
mod device;
mod log_pages;
mod mode_parameters;
mod describe;
mod reserve;
mod maintenance;
mod start;

use std::{collections::HashMap, io, sync::Arc};

use parking_lot::Mutex;
use scsi::Sense;
use smallvec::SmallVec;

pub(crate) use self::describe::is_identifying;
use self::{
    attention::Attentions, identifying::Identifying, modes::ModeSettings, order::TaskOrder,
    reply::at_once, reservation::Reservations, timestamp::UnitClock,
};
pub use self::{
    device::{DeviceModes, DeviceType},
    effect::{DeviceCommand, ReservationEffect},
    modes::Modes,
    order::TaskTurn,
    start::{PrimaryCommandInput, check_parameter_list},
};
use crate::{
    AttentionChange, Completion, LogicalUnit, Neighbours, Nexus, Task, TaskManagement,
    UnitIdentity, UnitReply, store::UnitStore,
};

/// The state that units of every device type have, and the commands of SPC on it.
///
/// Each unit owns one, passes nexuses and task management functions on to it, and lets [`crate::gate`] check
/// each command against it.
pub struct PrimaryUnit {
    identity: UnitIdentity,
    attentions: Attentions,
    reservations: Reservations,
    pub(crate) modes: ModeSettings,
    pub(crate) order: TaskOrder,
    clock: UnitClock,
    /// The identifying information of the unit; `None` for a unit without a store.
    identifying: Option<Identifying>,
    /// The other units of the target, and its ports, by the number of the nexus.
    reachable: Mutex<HashMap<u64, Arc<dyn Neighbours>>>,
}

impl PrimaryUnit {
    /// Returns the state of a unit that loses reservations and mode parameters when the process ends, and reports
    /// that it cannot save them.
    #[must_use]
    pub fn new(identity: UnitIdentity) -> Self {
        Self::with(identity, Reservations::new(), ModeSettings::new(), None)
    }

    /// Returns the state of a unit with the reservations, mode parameters and identifying information in `store`.
    ///
    /// # Errors
    /// A record cannot be read, or a unit did not write it.
    pub fn open(identity: UnitIdentity, store: &Arc<dyn UnitStore>) -> io::Result<Self> {
        let reservations = Reservations::load(Arc::clone(store))?;
        let modes = ModeSettings::load(Arc::clone(store))?;
        let identifying = Identifying::load(Arc::clone(store))?;
        Ok(Self::with(identity, reservations, modes, Some(identifying)))
    }

    fn with(
        identity: UnitIdentity,
        reservations: Reservations,
        modes: ModeSettings,
        identifying: Option<Identifying>,
    ) -> Self {
        Self {
            identity,
            attentions: Attentions::default(),
            reservations,
            modes,
            order: TaskOrder::default(),
            clock: UnitClock::default(),
            identifying,
            reachable: Mutex::default(),
        }
    }

    #[must_use]
    pub fn identity(&self) -> &UnitIdentity {
        &self.identity
    }

    /// Returns the mode parameters in force.
    #[must_use]
    pub fn current_modes(&self) -> Modes {
        self.modes.current()
    }

    /// Returns true if the unit keeps records over a restart.
    #[must_use]
    pub fn has_store(&self) -> bool {
        self.identifying.is_some()
    }

    /// Adds a nexus, for which a unit attention condition then waits. See [`LogicalUnit::nexus_opened`].
    pub fn nexus_opened(&self, nexus: &Nexus) {
        self.reservations.open(nexus);
        self.attentions.open(nexus.number);
    }

    /// Sets the units and ports to which this nexus has access. See [`LogicalUnit::nexus_reaches`].
    pub fn nexus_reaches(&self, nexus: &Nexus, neighbours: Arc<dyn Neighbours>) {
        self.reachable.lock().insert(nexus.number, neighbours);
    }

    /// Removes a nexus that has ended. See [`LogicalUnit::nexus_closed`].
    pub fn nexus_closed(&self, nexus: &Nexus) {
        self.attentions.close(nexus.number);
        self.reachable.lock().remove(&nexus.number);
        self.reservations.close(nexus.number);
    }

    /// Raises or withdraws a unit attention condition for one nexus. See [`LogicalUnit::change_attention`].
    pub fn change_attention(&self, nexus: &Nexus, condition: Sense, change: AttentionChange) {
        match change {
            AttentionChange::Raise => self.attentions.raise_to(condition, nexus.number),
            AttentionChange::Withdraw => self.attentions.withdraw(condition, nexus.number),
        }
    }

    /// Raises a unit attention condition for every nexus but `except`, which is the number of a nexus.
    pub fn raise(&self, condition: Sense, except: Option<u64>) {
        self.attentions.raise(condition, except);
    }

    /// Performs a task management function (SAM-5, 5.14 and 7). A reset raises its condition for every nexus, also for
    /// the one that asked for it; CLEAR TASK SET for all others, since the unit does not know which of them had tasks.
    pub fn task_management(&self, nexus: &Nexus, function: TaskManagement) {
        if function.is_reset() {
            self.reservations.reset();
            self.modes.reset();
        }
        match function {
            TaskManagement::LogicalUnitReset => {
                self.raise(Sense::BUS_DEVICE_RESET_FUNCTION_OCCURRED, None);
            }
            TaskManagement::TargetWarmReset | TaskManagement::TargetColdReset => {
                self.clock.reset();
                self.raise(Sense::SCSI_BUS_RESET_OCCURRED, None);
            }
            TaskManagement::ClearTaskSet => {
                self.raise(Sense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, Some(nexus.number));
            }
            TaskManagement::AbortTask | TaskManagement::AbortTaskSet | TaskManagement::ClearAca => {
            }
        }
    }

    /// Begins a task when its attribute permits (SAM-5, 8). `start` performs the command up to its first
    /// wait. An `Err` of `start` is the completion of a task that ends at once.
    pub fn in_turn<'a>(
        &'a self,
        task: Task,
        start: impl FnOnce(Task, TaskTurn<'a>) -> Result<UnitReply<'a>, Completion> + Send + 'a,
    ) -> UnitReply<'a> {
        match self.order.turn_now(task.attribute) {
            Some(turn) => start(task, turn).unwrap_or_else(at_once),
            None => UnitReply::new(async move {
                let turn = self.order.turn(task.attribute).await;
                start(task, turn).unwrap_or_else(at_once).await
            }),
        }
    }

    /// Returns the record of the reservations in force, those included that a loss of power here would end.
    /// After a move, the unit must refuse the same nexuses as before.
    #[must_use]
    pub fn reservations_to_move(&self) -> Vec<u8> {
        self.reservations.to_move()
    }

    /// Returns the generation of the reservations, which increases with each change. Returns `None` while a unit
    /// attention condition waits for a nexus: then the gate has to look whether the command reports it.
    pub(crate) fn generation(&self) -> Option<u64> {
        (!self.attentions.is_any_waiting()).then(|| self.reservations.generation())
    }

    /// Returns true if the command conflicts with a reservation of another nexus.
    pub(crate) fn conflicts(&self, nexus: u64, command: &impl DeviceCommand) -> bool {
        self.reservations.bar(nexus, command)
    }

    /// Removes and returns the condition of a reset, if it waits for this nexus (SAM-5, 5.3.3).
    pub(crate) fn take_reset(&self, nexus: u64) -> Option<Sense> {
        self.attentions.take_reset(nexus)
    }

    /// Removes and returns the oldest unit attention condition that waits for this nexus.
    pub(crate) fn take_attention(&self, nexus: u64) -> Option<Sense> {
        self.attentions.take(nexus)
    }

    /// Returns the unit of the same target that has this NAA designator, if the nexus has access to it.
    pub(crate) fn neighbour(&self, nexus: &Nexus, naa: &[u8; 16]) -> Option<Arc<dyn LogicalUnit>> {
        let neighbours = self.reachable.lock().get(&nexus.number).cloned();
        neighbours?.unit(naa)
    }

    /// Returns the target ports of the unit, ascending. The port of the nexus is always among them: its
    /// portal group may have been removed while its sessions stay.
    pub(crate) fn target_ports(&self, nexus: &Nexus) -> SmallVec<[u16; 4]> {
        let reachable = self.reachable.lock();
        let target = reachable.get(&nexus.number);
        let mut ports: SmallVec<[u16; 4]> =
            target.map(|target| target.target_ports().into()).unwrap_or_default();
        if let Err(place) = ports.binary_search(&nexus.target_port) {
            ports.insert(place, nexus.target_port);
        }
        ports
    }
}
