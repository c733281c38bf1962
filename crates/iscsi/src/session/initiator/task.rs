//! Commands between their submission and their status, found by their task tag.

use std::time::{Duration, Instant};

use bytes::Bytes;
use scsi::{Cdb, Lun, ScsiStatus, Sense};

use super::gather::DataInGather;
use crate::{
    Cid, DataSegment, Itt, Serial,
    pdu::{RejectReason, Residual},
};

/// A command that the application wants performed.
#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// The application's name for it; comes back with the outcome.
    pub tag: u64,
    /// The addressed unit.
    pub lun: Lun,
    /// The command.
    pub cdb: Cdb,
    /// What goes with it, and what comes back.
    pub transfer: DataPhase,
    /// How long after its submission the command is aborted.
    pub time_out: Duration,
}

/// The data phase of a command.
#[derive(Clone, Debug)]
pub enum DataPhase {
    /// No data.
    None,
    /// Data-In: room for so many bytes.
    In(u32),
    /// Data-Out: all of it. At most `u32::MAX` bytes.
    Out(Bytes),
}

/// How the target ended a command.
#[derive(Clone, Debug)]
pub struct InitiatorCommandOutcome {
    /// The SCSI status.
    pub status: ScsiStatus,
    /// Why, with CHECK CONDITION; `None` if there was none, or none that could be read.
    pub sense: Option<Sense>,
    /// What came back, at most what there was room for. Shares memory with the receive buffer.
    pub data_in: DataSegment,
    /// What the target says of data that was announced and not moved, or the reverse.
    pub residual: Residual,
}

/// A command that ended without a SCSI status. It may have been performed, or not, or in part.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CommandFailure {
    /// The target could not be made to answer in time; it was told to abort the task.
    #[error("no answer in time")]
    TimedOut,
    /// The target refused the PDU.
    #[error("the target rejected the command: {0:?}")]
    Rejected(RejectReason),
    /// iSCSI response code other than 0 (RFC 7143, 11.4.3).
    #[error("the target failed the command with response code {0:#04x}")]
    Response(u8),
    /// A status byte that SAM-5 does not define.
    #[error("the target answered with status {0:#04x}, which means nothing")]
    Status(u8),
}

/// A command that was sent and not yet answered.
#[derive(Debug)]
pub(super) struct InitiatorTask {
    pub(super) request: CommandRequest,
    /// Place in the order of submission, for the replay.
    pub(super) order: u64,
    pub(super) cmd_sn: Serial,
    /// Data and status of the command stay on this connection.
    pub(super) allegiance: Cid,
    /// That connection is gone: nothing is to be expected until the task has another one.
    pub(super) lost: bool,
    /// How often the command was sent again with its number.
    pub(super) retries: u32,
    /// When it is aborted; when it has been, when we stop waiting for that.
    pub(super) deadline: Instant,
    /// The tag of the ABORT TASK that is under way.
    pub(super) abort: Option<Itt>,
    /// When that has ended it, the command is the application's to send again.
    pub(super) returns: bool,
    pub(super) gather: DataInGather,
    /// The next R2TSN; `None` after a reassignment: the target's choice.
    pub(super) r2t_sn: Option<u32>,
    /// Where the next R2T must begin: each byte is sent once (DataSequenceInOrder=Yes).
    pub(super) sent: u32,
    /// R2Ts being served.
    pub(super) open_r2ts: u16,
    /// A status that has come before all data has.
    pub(super) status: Option<TaskFinalStatus>,
}

/// What a target says at the end of a task.
#[derive(Clone, Debug)]
pub(super) struct TaskFinalStatus {
    pub(super) status: u8,
    pub(super) sense: Bytes,
    pub(super) residual: Residual,
    /// Not acknowledged before all data is there (RFC 7143, 7.9).
    pub(super) stat_sn: Serial,
}

impl InitiatorTask {
    /// A command that was not sent yet.
    pub(super) fn new(
        request: CommandRequest,
        order: u64,
        cmd_sn: Serial,
        deadline: Instant,
    ) -> Self {
        let expected = if let DataPhase::In(length) = request.transfer { length } else { 0 };
        Self {
            gather: DataInGather::new(expected),
            request,
            order,
            cmd_sn,
            allegiance: Cid(0),
            lost: false,
            retries: 0,
            deadline,
            abort: None,
            returns: false,
            r2t_sn: Some(0),
            sent: 0,
            open_r2ts: 0,
            status: None,
        }
    }

    /// As if nothing had come of it: the target has not got the command.
    pub(super) fn start_again(&mut self) {
        self.gather.start_again();
        (self.r2t_sn, self.sent, self.open_r2ts) = (Some(0), 0, 0);
        self.status = None;
    }

    /// What it moves, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        match &self.request.transfer {
            DataPhase::None => 0,
            DataPhase::In(length) => u64::from(*length),
            DataPhase::Out(data) => data.len() as u64,
        }
    }
}

/// Tasks by their tag: the low half of an ITT is a place in the table, the high half counts how
/// often the place was used, so that a late answer never finds the next command.
#[derive(Debug, Default)]
pub(super) struct TaskTable {
    places: Vec<TaskTableEntry>,
    free: Vec<u16>,
}

#[derive(Debug, Default)]
struct TaskTableEntry {
    generation: u16,
    task: Option<InitiatorTask>,
}

/// The table ends below the tags of [`super::InitiatorSession::control_itt`] and [`Itt::NONE`].
const MOST_TASKS: usize = 0xff00;

impl TaskTable {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= MOST_TASKS
    }

    pub(super) fn insert(&mut self, task: InitiatorTask) -> Itt {
        let index = self.free.pop().unwrap_or_else(|| {
            assert!(self.places.len() < MOST_TASKS, "the caller looks at is_full");
            self.places.push(TaskTableEntry::default());
            (self.places.len() - 1) as u16
        });
        let place = &mut self.places[usize::from(index)];
        place.generation = place.generation.wrapping_add(1);
        place.task = Some(task);
        Itt(u32::from(place.generation) << 16 | u32::from(index))
    }

    pub(super) fn get(&self, itt: Itt) -> Option<&InitiatorTask> {
        let place = self.places.get(usize::from(itt.0 as u16))?;
        place.task.as_ref().filter(|_| u32::from(place.generation) == itt.0 >> 16)
    }

    pub(super) fn get_mut(&mut self, itt: Itt) -> Option<&mut InitiatorTask> {
        let place = self.places.get_mut(usize::from(itt.0 as u16))?;
        if u32::from(place.generation) != itt.0 >> 16 {
            return None;
        }
        place.task.as_mut()
    }

    pub(super) fn remove(&mut self, itt: Itt) -> Option<InitiatorTask> {
        self.get_mut(itt)?;
        self.free.push(itt.0 as u16);
        self.places[usize::from(itt.0 as u16)].task.take()
    }

    /// All tasks with their tags, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Itt, &InitiatorTask)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let itt = Itt(u32::from(place.generation) << 16 | index as u32);
            place.task.as_ref().map(|task| (itt, task))
        })
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Itt, &mut InitiatorTask)> {
        self.places.iter_mut().enumerate().filter_map(|(index, place)| {
            let itt = Itt(u32::from(place.generation) << 16 | index as u32);
            place.task.as_mut().map(|task| (itt, task))
        })
    }

    /// Empties the table.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = InitiatorTask> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.task)
    }
}
