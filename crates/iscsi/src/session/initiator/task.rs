//! The commands of a session, from submission to status, in a table that is indexed by initiator
//! task tag.

use std::time::{Duration, Instant};

use bytes::Bytes;
use scsi::{Cdb, Lun, ReceivedObjectSense, ScsiStatus, Sense};

use super::{
    InitiatorSessionError,
    gather::{DataInArrival, DataInGather},
};
use crate::{
    Cid, DataSegment, Itt, Serial,
    pdu::{RejectReason, Residual},
};

#[derive(Clone, Debug)]
pub struct CommandRequest {
    /// The application's identifier of the command, which is returned with the outcome.
    pub tag: u64,
    pub lun: Lun,
    pub cdb: Cdb,
    pub transfer: DataPhase,
    /// The command is aborted when this time has passed since its submission.
    pub time_out: Duration,
}

#[derive(Clone, Debug)]
pub enum DataPhase {
    None,
    /// The command reads at most this number of bytes (Data-In).
    In(u32),
    /// Data-Out: all data of the command, at most `u32::MAX` bytes.
    Out(Bytes),
    /// Data-Out, and Data-In of at most `data_in` bytes (a bidirectional command; RFC 7143, 11.3.1).
    Both {
        data_out: Bytes,
        data_in: u32,
    },
}

impl DataPhase {
    #[must_use]
    pub const fn data_out(&self) -> Option<&Bytes> {
        match self {
            Self::Out(data_out) | Self::Both { data_out, .. } => Some(data_out),
            Self::None | Self::In(_) => None,
        }
    }

    /// Returns the most bytes that the command receives.
    #[must_use]
    pub const fn data_in(&self) -> Option<u32> {
        match *self {
            Self::In(data_in) | Self::Both { data_in, .. } => Some(data_in),
            Self::None | Self::Out(_) => None,
        }
    }
}

/// The outcome of a command that ended with a SCSI status.
#[derive(Clone, Debug)]
pub struct InitiatorCommandOutcome {
    pub status: ScsiStatus,
    /// The sense data of CHECK CONDITION; `None` if there was none, or if it was invalid.
    pub sense: Option<Sense>,
    /// The descriptors of an object storage device in the sense data.
    pub object_sense: Option<Box<ReceivedObjectSense>>,
    /// The data of a read, at most as much as requested. It shares memory with the receive buffer.
    pub data_in: DataSegment,
    /// The difference between expected and transferred data, as the target reports it: of the
    /// Data-Out for a bidirectional command.
    pub residual: Residual,
    /// The difference between expected and transferred Data-In of a bidirectional command.
    pub bidirectional_read_residual: Residual,
}

/// A command that ended without a SCSI status. The target may have executed all of it, a part of
/// it, or nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CommandFailure {
    /// The target did not answer in time, and the task was aborted.
    #[error("no answer in time")]
    TimedOut,
    #[error("the target rejected the command: {0:?}")]
    Rejected(RejectReason),
    /// The target has answered with this iSCSI response code, which is not 0 (RFC 7143, 11.4.3).
    #[error("the target failed the command with response code {0:#04x}")]
    Response(u8),
    /// The target answered with a status byte that SAM-5 does not define.
    #[error("the target answered with the undefined SCSI status {0:#04x}")]
    Status(u8),
}

/// A command that the initiator has sent and the target has not answered.
#[derive(Debug)]
pub(super) struct InitiatorTask {
    pub(super) request: CommandRequest,
    /// The position in the order of submission. Unanswered commands are submitted to the next
    /// session in this order.
    pub(super) order: u64,
    pub(super) cmd_sn: Serial,
    /// The connection that carries the data and status of the command.
    pub(super) allegiance: Cid,
    /// True if the connection of the task has failed. The task then waits to be moved to another
    /// connection.
    pub(super) lost: bool,
    /// Number of times that the command was sent again with the same CmdSN.
    pub(super) retries: u32,
    /// When the command is aborted. Once the abort is sent, the time at which the wait for its
    /// answer ends.
    pub(super) deadline: Instant,
    /// The tag of the ABORT TASK in progress.
    pub(super) abort: Option<Itt>,
    /// True if the command is returned to the application, to be submitted again, when the abort
    /// has ended it.
    pub(super) returns: bool,
    pub(super) gather: DataInGather,
    /// The R2TSN that the next R2T must have; `None` after a TASK REASSIGN, since the target may then continue with any
    /// number. The R2Ts of a bidirectional command are numbered together with its Data-In, so the number for them is in
    /// `gather`, and only whether this field is `None` counts.
    r2t_sn: Option<u32>,
    /// The offset at which the next R2T must begin. The target requests each byte once and in order
    /// (DataSequenceInOrder=Yes).
    pub(super) sent: u32,
    /// The number of R2Ts whose data is not sent completely.
    pub(super) open_r2ts: u16,
    /// The status of the command, if it has arrived before all data of the command.
    pub(super) status: Option<TaskFinalStatus>,
}

#[derive(Clone, Debug)]
pub(super) struct TaskFinalStatus {
    pub(super) status: u8,
    pub(super) sense: Bytes,
    pub(super) residual: Residual,
    pub(super) bidirectional_read_residual: Residual,
    /// The StatSN of the status. It must not be acknowledged before all data has arrived (RFC 7143,
    /// 7.9).
    pub(super) stat_sn: Serial,
}

impl InitiatorTask {
    /// Creates the task of a command that is still to be sent.
    pub(super) fn new(
        request: CommandRequest,
        order: u64,
        cmd_sn: Serial,
        deadline: Instant,
    ) -> Self {
        let expected = request.transfer.data_in().unwrap_or(0);
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

    /// Resets the progress of the task, because the target has not received its command and it is
    /// sent again.
    pub(super) fn start_again(&mut self) {
        self.gather.start_again();
        (self.r2t_sn, self.sent, self.open_r2ts) = (Some(0), 0, 0);
        self.status = None;
    }

    /// Returns the number of bytes that the command transfers.
    pub(super) fn bytes(&self) -> u64 {
        let transfer = &self.request.transfer;
        let data_out = transfer.data_out().map_or(0, |data| data.len() as u64);
        data_out + u64::from(transfer.data_in().unwrap_or(0))
    }

    fn is_bidirectional(&self) -> bool {
        matches!(self.request.transfer, DataPhase::Both { .. })
    }

    /// Returns true if less Data-In of a bidirectional command has arrived than the target reports
    /// with `residual`. The residual of another read is checked by the caller of the session.
    pub(super) fn lacks_data_in(&self, residual: Residual) -> bool {
        let DataPhase::Both { data_in, .. } = self.request.transfer else { return false };
        let missing = if let Residual::Underflow(missing) = residual { missing } else { 0 };
        self.gather.received() < data_in.saturating_sub(missing)
    }

    /// Returns the R2TSN that the next R2T must have; `None` if any number is valid.
    pub(super) fn next_r2t_sn(&self) -> Option<u32> {
        let counted = self.is_bidirectional().then(|| self.gather.next_data_sn());
        self.r2t_sn.map(|r2t_sn| counted.unwrap_or(r2t_sn))
    }

    /// Records the arrival of an R2T. The caller has checked its number, unless any number is
    /// valid.
    pub(super) fn take_r2t_sn(&mut self, r2t_sn: u32) -> Result<(), InitiatorSessionError> {
        self.r2t_sn = Some(r2t_sn.wrapping_add(1));
        if self.is_bidirectional() { self.gather.take_r2t(r2t_sn) } else { Ok(()) }
    }

    /// Records that an R2T was sent and that R2Ts before it are missing. Returns the numbers of the
    /// PDUs to request: the first, and how many, or 0 for all from the first on.
    pub(super) fn miss_r2t(&mut self, r2t_sn: u32, expected: u32) -> Option<(u32, u32)> {
        if !self.is_bidirectional() {
            return Some((expected, 0));
        }
        match self.gather.lose(r2t_sn) {
            DataInArrival::After { first, count } => Some((first, count)),
            DataInArrival::New | DataInArrival::Repeated => None,
        }
    }

    /// Resets the R2T state of the task, which a TASK REASSIGN has moved to another connection.
    pub(super) fn forget_r2ts(&mut self) {
        (self.r2t_sn, self.open_r2ts, self.status) = (None, 0, None);
        if self.is_bidirectional() {
            self.gather.accept_any_number();
        }
    }
}

/// Tasks by initiator task tag. The low half of a tag is the index of an entry. The high half
/// counts how often this entry was used, so that a late answer to an old command is never mistaken
/// for one to the command that uses the entry now.
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

/// The most entries. All indexes are below the low halves of the tags of
/// `SessionCommands::control_itt` and of [`Itt::NONE`].
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

    /// Returns all tasks with their initiator task tags, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Itt, &InitiatorTask)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let itt = Itt(u32::from(place.generation) << 16 | index as u32);
            place.task.as_ref().map(|task| (itt, task))
        })
    }

    /// Returns all tasks with their initiator task tags for modification, in no particular order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Itt, &mut InitiatorTask)> {
        self.places.iter_mut().enumerate().filter_map(|(index, place)| {
            let itt = Itt(u32::from(place.generation) << 16 | index as u32);
            place.task.as_mut().map(|task| (itt, task))
        })
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = InitiatorTask> {
        self.free.clear();
        std::mem::take(&mut self.places).into_iter().filter_map(|place| place.task)
    }
}
