//! What a session knows of a task while it is in progress.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use scsi::Lun;

use crate::{Cid, Itt, Serial};

/// A task in progress: a command from its arrival to its status, or a task management function.
#[derive(Clone, Debug)]
pub(super) struct Task {
    /// The connection it came on; its data and status stay there (connection allegiance).
    pub(super) allegiance: Cid,
    pub(super) lun: Lun,
    pub(super) cmd_sn: Serial,
    /// It takes no place in the command window.
    pub(super) immediate: bool,
    pub(super) stage: Stage,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) expected_data_transfer_length: u32,
    /// Read half of a bidirectional command.
    pub(super) bidirectional_read_length: Option<u32>,
    /// Bytes counted against `Settings::solicited_bytes`.
    pub(super) solicited: u64,
    /// R2Ts that were sent for it.
    pub(super) r2t_sn: u32,
}

/// How far a task has come.
///
/// ```text
/// arrived ──▶ Gathering ──▶ Executing ──▶ (status sent, task gone)
///     └─ all data there ────────▲
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// Its data is not complete; the driver does not have it.
    Gathering,
    /// The driver has it.
    Executing,
    /// A task management function whose effects the driver brings about.
    Management,
}

/// Tasks by tag. At most `queue_commands + immediate_commands` of them, so a peer that picks tags
/// which collide gains nothing, and a cheap hash will do.
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

/// Do two LUNs name one unit, whichever form an initiator wrote them in?
pub(super) fn is_same_unit(a: Lun, b: Lun) -> bool {
    a == b || a.number().is_some_and(|number| b.number() == Some(number))
}
