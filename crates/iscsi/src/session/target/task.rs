//! The state of a task while it is in progress.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    time::Instant,
};

use scsi::{AdmittedCommand, Cdb, Lun};

use crate::{Itt, Serial, transfer::DataOutGather};

use super::{
    event::TargetCommandOutcome,
    waiting::{Charge, Stall},
};

/// Identifies one connection of a session. Another connection may have the same CID later, but never the same instance.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Instance(pub(super) u32);

/// A task in progress: a command from its arrival to its status, or a task management function.
#[derive(Clone, Debug)]
pub(super) struct TargetTask {
    /// The connection on which the task came or to which it was reassigned. Its data and status use this connection
    /// (connection allegiance). If the connection is lost, the task waits for its reassignment.
    pub(super) allegiance: Instance,
    pub(super) lun: Lun,
    pub(super) cmd_sn: Serial,
    /// The task takes no place in the command window.
    pub(super) immediate: bool,
    pub(super) stage: TargetTaskStage,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) expected_data_transfer_length: u32,
    /// Read half of a bidirectional command.
    pub(super) bidirectional_read_length: Option<u32>,
    /// Bytes counted against `Settings::solicited_bytes`.
    pub(super) solicited: u64,
    /// Number of R2Ts that were sent for the task.
    pub(super) r2t_sn: u32,
    /// The tag of an R-Data SNACK that came before its data (RFC 7143, 11.16.3), else 0.
    pub(super) snack_tag: u32,
}

impl TargetTask {
    /// Returns true if a task management function with this CmdSN affects the task (RFC 7143, 11.5.1). The next
    /// command in order has the CmdSN of an immediate function and comes after it. An immediate command with that
    /// CmdSN does not use it up, and may have come before the function.
    pub(super) fn comes_before(&self, cmd_sn: Serial) -> bool {
        self.cmd_sn.is_before(cmd_sn) || self.immediate && self.cmd_sn == cmd_sn
    }

    /// Returns the bytes of Data-In that the initiator has room for.
    pub(super) fn data_in_capacity(&self) -> u32 {
        match (self.read, self.write) {
            (false, _) => 0,
            (true, false) => self.expected_data_transfer_length,
            (true, true) => self.bidirectional_read_length.unwrap_or(0),
        }
    }
}

/// The tasks of a session: commands and task management functions in progress.
#[derive(Debug, Default)]
pub(super) struct SessionTasks {
    pub(super) by_tag: Tasks<TargetTask>,
    /// Number of tasks that take a place in the command window.
    pub(super) in_progress: u32,
    /// Number of immediate tasks.
    pub(super) immediate: u32,
}

impl SessionTasks {
    /// A task begins. The caller has seen that its tag is free.
    pub(super) fn begin(&mut self, itt: Itt, task: TargetTask) {
        if task.immediate {
            self.immediate += 1;
        } else {
            self.in_progress += 1;
        }
        self.by_tag.insert(itt, task);
    }

    /// A task ends; its place in the window is free again.
    pub(super) fn end(&mut self, itt: Itt) -> Option<TargetTask> {
        self.end_if(itt, |_| true)
    }

    /// Ends a task as [`Self::end`] does, if `ends` returns true for it.
    pub(super) fn end_if(
        &mut self,
        itt: Itt,
        ends: impl FnOnce(&TargetTask) -> bool,
    ) -> Option<TargetTask> {
        let Entry::Occupied(task) = self.by_tag.entry(itt) else { return None };
        if !ends(task.get()) {
            return None;
        }
        let task = task.remove();
        if task.immediate {
            self.immediate -= 1;
        } else {
            self.in_progress -= 1;
        }
        Some(task)
    }
}

/// How far a task has come.
///
/// ```text
/// arrived ──▶ Gathering ──▶ Executing ──▶ (status sent, task gone)
///     └─ all data there ────────▲
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TargetTaskStage {
    /// The data of the task is not complete. The driver does not have the task.
    Gathering,
    /// The driver has the task.
    Executing,
    /// A task management function whose effects the driver brings about.
    Management,
}

/// A write whose data is not complete.
#[derive(Debug)]
pub(super) struct IncomingWrite {
    pub(super) gather: DataOutGather,
    pub(super) cdb: Cdb,
    pub(super) attribute: u8,
    pub(super) admission: AdmissionState,
    /// The unit's result of checking the command, which goes back to the unit together with the data.
    pub(super) admitted: Option<AdmittedCommand>,
    /// The outcome of a write that the driver has refused. It is sent when no more data is on its way.
    pub(super) refusal: Option<TargetCommandOutcome>,
    /// When data last came, or was last requested.
    pub(super) progress: Instant,
    /// The charge for data that has come and for data that was requested.
    pub(super) charge: Charge,
    /// When the write came, was admitted, or was last asked for data, whichever was last.
    pub(super) begun: Instant,
    /// `arrived` bytes have come since then: less than [`PROGRESS`](super::waiting::PROGRESS).
    pub(super) stall: Stall,
    pub(super) arrived: u32,
}

impl IncomingWrite {
    /// Returns true if an R2T of this write was not answered in full.
    pub(super) fn is_asked_for(&self) -> bool {
        self.gather.has_valid_ttt()
    }
}

/// Says whether the data of a write may be requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AdmissionState {
    /// No data has to be requested, or the driver has not decided yet.
    Pending,
    /// The write waits for its share of the data that may be requested.
    Waiting,
    Granted,
}

/// Tasks by tag. There are at most `queue_commands + immediate_commands`, so a peer gains nothing by choosing tags that
/// collide, and a cheap hash is enough.
pub(super) type Tasks<T> = HashMap<Itt, T, BuildHasherDefault<TagHasher>>;

/// Fibonacci hashing of one 32-bit tag.
#[derive(Default)]
pub(super) struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, tag: u32) {
        let mixed = (self.0 ^ u64::from(tag)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Returns true if two LUNs name the same unit, in whichever form the initiator wrote them.
pub(super) fn is_same_unit(a: Lun, b: Lun) -> bool {
    a == b || a.number().is_some_and(|number| b.number() == Some(number))
}
