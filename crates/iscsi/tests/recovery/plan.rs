//! The plan of a test run (workload and fault), and its report.

use crate::model::Op;

/// The fault that one PDU of a test run suffers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    Dropped,
    /// The data digest is wrong. A PDU without data is dropped instead.
    DataDamaged,
    HeaderDamaged,
    /// The connection ends after this PDU. Both initiator and target notice that.
    Cut,
    /// The connection ends after this PDU. The target does not notice that.
    CutUnnoticed,
}

/// A kind of PDU of the initiator that never arrives. Tests use it to check that the recovery depends
/// on these PDUs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mute {
    Snacks,
    Reassigns,
    /// Lose all commands that are sent again with their old CmdSN.
    Retries,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub level: u8,
    pub connections: u16,
    /// The number of the PDU with the fault, from 1 on over all connections and both directions, and the fault.
    pub fault: Option<(u32, Fault)>,
    pub mute: Option<Mute>,
    /// If true, the application forgets returned commands: see `App::forgets`.
    pub forgets: bool,
    /// If true, commands of this run may end with an error.
    pub may_fail: bool,
}

impl Plan {
    pub fn new(level: u8, connections: u16) -> Self {
        Self { level, connections, fault: None, mute: None, forgets: false, may_fail: false }
    }
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Report {
    pub pdus: u32,
    pub answered: u32,
    pub failed: u32,
    /// Number of sessions that the initiator has created after the first one.
    pub rebuilt: u32,
    /// The number of connections that ended.
    pub ended: u32,
    pub seconds: u64,
}

/// The commands of each worker: writes with immediate data only, writes with unsolicited and solicited data, reads of
/// one PDU and of several.
/// Bidirectional commands send and return one PDU and several.
pub const SCRIPT: [Op; 9] = [
    Op::Write { length: 100 },
    Op::Read { length: 3000 },
    Op::Write { length: 3000 },
    Op::Write { length: 7000 },
    Op::Read { length: 9000 },
    Op::Read { length: 500 },
    Op::Exchange { data_out: 100, data_in: 100 },
    Op::Exchange { data_out: 7000, data_in: 3000 },
    Op::Exchange { data_out: 3000, data_in: 9000 },
];

pub const WORKERS: u8 = 4;
