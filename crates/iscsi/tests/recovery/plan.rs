//! A run: its workload, its fault, and its report.

use crate::model::Op;

/// The fault of one PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    Dropped,
    /// The data digest is wrong; a PDU without data is dropped.
    DataDamaged,
    /// The header digest is wrong.
    HeaderDamaged,
    /// The PDU is the last of its connection; both ends see the end.
    Cut,
    /// The PDU is the last of its connection, and the target does not notice the end.
    CutUnnoticed,
}

/// A kind of PDU of the initiator that never arrives. Tests use it to check that the recovery depends
/// on these PDUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mute {
    Snacks,
    Reassigns,
    /// Commands that were sent before, with their CmdSN.
    Retries,
}

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub level: u8,
    pub connections: u16,
    /// The PDU with the fault, counted from 1 over all connections and both directions.
    pub fault: Option<(u32, Fault)>,
    pub mute: Option<Mute>,
    /// If true, the application loses returned commands.
    pub forgets: bool,
    /// If true, commands may end with an error.
    pub may_fail: bool,
}

impl Plan {
    pub fn new(level: u8, connections: u16) -> Self {
        Self { level, connections, fault: None, mute: None, forgets: false, may_fail: false }
    }
}

/// The report of a run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Report {
    pub pdus: u32,
    pub answered: u32,
    pub failed: u32,
    /// Number of sessions after the first.
    pub rebuilt: u32,
    /// Number of connections that ended.
    pub ended: u32,
    pub seconds: u64,
}

/// Writes with immediate data only, and with unsolicited and solicited data; reads of one PDU and
/// of several.
pub const SCRIPT: [Op; 6] = [
    Op::Write { length: 100 },
    Op::Read { length: 3000 },
    Op::Write { length: 3000 },
    Op::Write { length: 7000 },
    Op::Read { length: 9000 },
    Op::Read { length: 500 },
];

pub const WORKERS: u8 = 4;
