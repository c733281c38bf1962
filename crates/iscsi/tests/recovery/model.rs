//! The application and the disk of a run. They check that every command is answered once and with
//! GOOD, that no block returns to an older version, and that reads return what was written.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use bytes::Bytes;
use iscsi::{
    DataSegment,
    pdu::Residual,
    session::initiator::{CommandFailure, CommandRequest, DataPhase, InitiatorCommandOutcome},
};
use scsi::{Cdb, Lun, ScsiStatus};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    Read {
        length: u32,
    },
    Write {
        length: u32,
    },
    /// Writes and returns the version that was written, as a bidirectional command.
    Exchange {
        data_out: u32,
        data_in: u32,
    },
}

const READ: u8 = 0x88;
const WRITE: u8 = 0x8a;
const EXCHANGE: u8 = 0x7f;

/// Returns bytes that depend on block, version and offset.
fn pattern(block: u8, version: u32, length: u32) -> Bytes {
    let word = |at: u32| (at ^ version << 20 ^ u32::from(block) << 28).to_le_bytes();
    let bytes: Vec<u8> = (0..length.div_ceil(4)).flat_map(word).take(length as usize).collect();
    bytes.into()
}

/// Returns the version of the write that `data` comes from. Panics if `data` has bytes of several
/// versions.
fn version_of(block: u8, data: &[u8]) -> u32 {
    let first = u32::from_le_bytes(*data.first_chunk().expect("four bytes"));
    let version = (first ^ u32::from(block) << 28) >> 20;
    let whole = pattern(block, version, data.len() as u32);
    assert!(data == whole, "block {block}: bytes of several versions");
    version
}

/// The disk, which stores a version number for each block.
#[derive(Default)]
pub struct Disk {
    versions: BTreeMap<u8, u32>,
    pub performed: u32,
}

impl Disk {
    pub fn perform(&mut self, cdb: &Cdb, data_out: &DataSegment, capacity: u32) -> DataSegment {
        self.performed += 1;
        let block = cdb[1];
        let now = self.versions.entry(block).or_default();
        match cdb[0] {
            READ => DataSegment::from_elem(pattern(block, *now, capacity), 1),
            WRITE => {
                let version = version_of(block, &data_out.concat());
                assert!(version >= *now, "block {block}: version {version} after {now}");
                *now = version;
                DataSegment::new()
            }
            EXCHANGE => {
                let version = version_of(block, &data_out.concat());
                assert!(version >= *now, "block {block}: version {version} after {now}");
                *now = version;
                DataSegment::from_elem(pattern(block, version, capacity), 1)
            }
            opcode => unreachable!("opcode {opcode:#x}"),
        }
    }
}

/// A simulated application: workers that each use a block of their own and have one command in flight.
pub struct App {
    workers: Vec<Worker>,
    /// Commands that the session has given back without an answer. They are submitted before new ones.
    returned: VecDeque<CommandRequest>,
    pub answered: u32,
    /// The number of commands that failed; only in runs where commands may fail.
    pub failed: u32,
    pub may_fail: bool,
    /// If true, the application forgets returned commands. A test uses this to check that the loss
    /// is detected.
    pub forgets: bool,
}

struct Worker {
    block: u8,
    script: VecDeque<Op>,
    /// The tag and operation of the command in flight, and the version that was acknowledged when a
    /// read began.
    open: Option<(u64, Op, u32)>,
    /// The newest version that was sent in a write. `acknowledged` is the newest one whose write
    /// was answered.
    written: u32,
    acknowledged: u32,
    number: u64,
}

impl App {
    pub fn new(workers: u8, script: &[Op]) -> Self {
        let worker = |block| Worker {
            block,
            script: script.iter().copied().collect(),
            open: None,
            written: 0,
            acknowledged: 0,
            number: 0,
        };
        Self {
            workers: (0..workers).map(worker).collect(),
            returned: VecDeque::new(),
            answered: 0,
            failed: 0,
            may_fail: false,
            forgets: false,
        }
    }

    pub fn next(&mut self) -> Option<CommandRequest> {
        if let Some(request) = self.returned.pop_front() {
            return Some(request);
        }
        let worker = self.workers.iter_mut().find(|w| w.open.is_none() && !w.script.is_empty())?;
        let op = worker.script.pop_front().expect("just looked at");
        worker.number += 1;
        let tag = u64::from(worker.block) << 32 | worker.number;
        let (opcode, transfer) = match op {
            Op::Read { length } => (READ, DataPhase::In(length)),
            Op::Write { length } => {
                worker.written += 1;
                (WRITE, DataPhase::Out(pattern(worker.block, worker.written, length)))
            }
            Op::Exchange { data_out, data_in } => {
                worker.written += 1;
                let data_out = pattern(worker.block, worker.written, data_out);
                (EXCHANGE, DataPhase::Both { data_out, data_in })
            }
        };
        worker.open = Some((tag, op, worker.acknowledged));
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, worker.block);
        let time_out = Duration::from_secs(30);
        Some(CommandRequest { tag, lun: Lun(0), cdb: Cdb::new(&cdb), transfer, time_out })
    }

    /// Takes back commands that the session did not accept or that the target can no longer
    /// execute. They are submitted again.
    pub fn take_back(&mut self, requests: Vec<CommandRequest>) {
        for request in requests.into_iter().rev() {
            if !self.forgets {
                self.returned.push_front(request);
            }
        }
    }

    pub fn complete(&mut self, tag: u64, result: Result<InitiatorCommandOutcome, CommandFailure>) {
        let worker = &mut self.workers[(tag >> 32) as usize];
        let (open, op, acknowledged) = worker.open.take().expect("it was not answered before");
        assert_eq!(open, tag, "an answer to another command");
        let outcome = match result {
            Ok(outcome) if outcome.status == ScsiStatus::Good => outcome,
            // Submit the failed command again, as the SCSI layer of a host does.
            Ok(_) | Err(_) if self.may_fail => {
                self.failed += 1;
                worker.script.push_front(op);
                return;
            }
            other => panic!("command {tag:#x} ended with {other:?}"),
        };
        self.answered += 1;
        match op {
            Op::Write { .. } => worker.acknowledged = worker.written,
            Op::Exchange { data_in, .. } => {
                let data = outcome.data_in.concat();
                assert_eq!(data.len(), data_in as usize, "all of it");
                assert_eq!(version_of(worker.block, &data), worker.written);
                let residuals = (outcome.residual, outcome.bidirectional_read_residual);
                assert_eq!(residuals, (Residual::None, Residual::None));
                worker.acknowledged = worker.written;
            }
            Op::Read { length } => {
                let data = outcome.data_in.concat();
                assert_eq!(data.len(), length as usize, "all of it");
                let version = version_of(worker.block, &data);
                let possible = acknowledged..=worker.written;
                assert!(possible.contains(&version), "read {version}, not one of {possible:?}");
            }
        }
    }

    pub fn is_done(&self) -> bool {
        self.workers.iter().all(|worker| worker.open.is_none() && worker.script.is_empty())
    }
}
