//! Tasks of a session: commands and task management functions from their arrival to their end.

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

/// Identifies one connection of a session. Another connection may have the same CID later, but
/// never the same instance.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) struct Instance(pub(super) u32);

/// A task in progress: a command from its arrival to its status, or a task management function.
#[derive(Clone, Debug)]
pub(super) struct TargetTask {
    /// The connection for data and status of the task (connection allegiance): the one on which it
    /// arrived or to which it was reassigned. If this connection has failed, the task waits for its
    /// reassignment.
    pub(super) allegiance: Instance,
    pub(super) lun: Lun,
    pub(super) cmd_sn: Serial,
    /// True if the task is immediate. An immediate task uses no place in the command window.
    pub(super) immediate: bool,
    pub(super) stage: TargetTaskStage,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) expected_data_transfer_length: u32,
    /// The length of the Data-In of a bidirectional command.
    pub(super) bidirectional_read_length: Option<u32>,
    /// Bytes of write data that R2Ts of this task count against the limit `Settings::solicited_bytes`.
    pub(super) solicited: u64,
    /// The number of R2Ts that were sent for the task.
    pub(super) r2t_sn: u32,
    /// The tag of an R-Data SNACK that arrived before any Data-In was sent (RFC 7143, 11.16.3),
    /// otherwise 0.
    pub(super) snack_tag: u32,
}

impl TargetTask {
    /// Returns true if a task management function with this CmdSN affects the task (RFC 7143,
    /// 11.5.1). An immediate function carries the CmdSN of the next command, and that command comes
    /// after the function. An immediate command also carries this CmdSN without consuming it, and
    /// may have come before the function.
    pub(super) fn comes_before(&self, cmd_sn: Serial) -> bool {
        self.cmd_sn.is_before(cmd_sn) || self.immediate && self.cmd_sn == cmd_sn
    }

    /// Returns the most bytes of Data-In that the initiator accepts.
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
    /// The number of tasks that are not immediate and therefore use a place in the command window.
    pub(super) in_progress: u32,
    pub(super) immediate: u32,
    /// The units whose sense data must have descriptor format.
    pub(super) descriptor_sense_units: Vec<Lun>,
}

impl SessionTasks {
    /// Adds a task. The caller has checked that no other task has the tag `itt`.
    pub(super) fn begin(&mut self, itt: Itt, task: TargetTask) {
        if task.immediate {
            self.immediate += 1;
        } else {
            self.in_progress += 1;
        }
        self.by_tag.insert(itt, task);
    }

    /// Returns the format of the sense data that the session makes for a task of this unit.
    pub(super) fn sense_format(&self, lun: Lun) -> SenseFormat {
        let is_it = |unit: &Lun| is_same_unit(*unit, lun);
        if self.descriptor_sense_units.iter().any(is_it) {
            SenseFormat::Descriptor
        } else {
            SenseFormat::AsTheUnitWishes
        }
    }

    /// Removes the task `itt`, which frees its space in the command window.
    pub(super) fn end(&mut self, itt: Itt) -> Option<TargetTask> {
        self.end_if(itt, |_| true)
    }

    /// Removes the task `itt` like [`Self::end`], but only if `ends` returns true for it.
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

/// The progress of a task.
///
/// ```text
/// arrived ──▶ Gathering ──▶ Executing ──▶ (status sent, task removed)
///     └─ all data there ────────▲
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum TargetTaskStage {
    /// A write whose data is incomplete, so that the driver does not have it yet.
    Gathering,
    Executing,
    /// A task management function, which the driver executes.
    Management,
}

/// A write whose data is incomplete.
#[derive(Debug)]
pub(super) struct IncomingWrite {
    pub(super) gather: DataOutGather,
    pub(super) cdb: Cdb,
    pub(super) attribute: u8,
    pub(super) admission: AdmissionState,
    /// The result of the checks that the unit made before its data was requested. The unit gets it
    /// back together with the data.
    pub(super) admitted: Option<AdmittedCommand>,
    /// The outcome of a write that was refused. It is sent when no more data is on its way.
    pub(super) refusal: Option<TargetCommandOutcome>,
    /// When data last arrived, or was last requested.
    pub(super) progress: Instant,
    /// The memory charged for data that has arrived and for data that was requested.
    pub(super) charge: Charge,
    /// The time when the write arrived, was admitted or requested data, whichever was last.
    pub(super) begun: Instant,
    /// Measures the time without progress. `arrived` counts the bytes since this measurement started. At
    /// [`PROGRESS`](super::waiting::PROGRESS) bytes the count and the measurement start again.
    pub(super) stall: Stall,
    pub(super) arrived: u32,
}

impl IncomingWrite {
    /// Returns true if an R2T of this write has requested data that has not arrived completely.
    pub(super) fn is_asked_for(&self) -> bool {
        self.gather.has_valid_ttt()
    }
}

/// The format of the sense data of a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SenseFormat {
    /// The format that the sense data asks for: fixed, unless the unit has set descriptor format.
    AsTheUnitWishes,
    /// Descriptor format, whatever the sense data itself requires.
    Descriptor,
}

/// Whether the data of a write may be requested.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum AdmissionState {
    /// The driver has not admitted the write yet, or the write needs no R2T.
    Pending,
    /// The driver has admitted the write. It waits for memory, or for its connection's share of the
    /// data that may be requested.
    Waiting,
    Granted,
}

/// Tasks by initiator task tag. At most `queue_commands + immediate_commands` tasks exist, so a
/// peer gains nothing by choosing tags that collide, and a cheap hash is sufficient.
pub(super) type Tasks<T> = HashMap<Itt, T, BuildHasherDefault<TagHasher>>;

/// Hashes a 32-bit task tag by multiplication (Fibonacci hashing).
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

/// Returns true if two LUNs address the same unit, even in different LUN formats.
pub(super) fn is_same_unit(a: Lun, b: Lun) -> bool {
    a == b || a.number().is_some_and(|number| b.number() == Some(number))
}
