//! A run: its workload, the fault that happens in it, and its outcome.

use crate::model::Op;

/// What happens to one PDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    Dropped,
    /// Its data digest is wrong; a PDU without data is dropped.
    DataDamaged,
    /// Its header digest is wrong.
    HeaderDamaged,
    /// It is the last of its connection; both ends see the end.
    Cut,
    /// The same, and the target does not notice.
    CutUnnoticed,
}

/// What recovery is made of: these PDUs of the initiator never arrive, to see that it is they that
/// recover.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mute {
    Snacks,
    Reassigns,
    /// Commands that were sent before.
    Retries,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub level: u8,
    pub connections: u16,
    /// The PDU that it happens to, counted from 1 over all connections and both directions.
    pub fault: Option<(u32, Fault)>,
    pub mute: Option<Mute>,
    /// The application forgets what came back.
    pub forgets: bool,
    /// Commands may end with an error.
    pub may_fail: bool,
}

impl Plan {
    pub fn new(level: u8, connections: u16) -> Self {
        Self { level, connections, fault: None, mute: None, forgets: false, may_fail: false }
    }
}

/// What a run was like.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Report {
    pub pdus: u32,
    pub answered: u32,
    pub failed: u32,
    /// Sessions after the first.
    pub rebuilt: u32,
    /// Connections that ended.
    pub ended: u32,
    pub seconds: u64,
}

/// Immediate data alone; with unsolicited and solicited data; reads of one PDU and of several.
pub const SCRIPT: [Op; 6] = [
    Op::Write { length: 100 },
    Op::Read { length: 3000 },
    Op::Write { length: 3000 },
    Op::Write { length: 7000 },
    Op::Read { length: 9000 },
    Op::Read { length: 500 },
];

pub const WORKERS: u8 = 4;
