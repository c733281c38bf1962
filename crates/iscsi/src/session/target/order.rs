//! Command order: the window of command numbers, and commands that arrived before their turn (RFC
//! 7143, 4.2.2.1).

use std::time::Instant;

use crate::{Bhs, Pdu, Serial, pdu::DataOut, window::TargetCommandWindow};

use super::{
    task::Instance,
    waiting::{Charge, Stall},
};

#[derive(Debug)]
pub(super) struct CommandOrder {
    pub(super) window: TargetCommandWindow<Early>,
    /// The CmdSN of the missing command that others wait for, and the time for which it has been
    /// missing.
    pub(super) hole: Option<(Serial, Stall)>,
}

/// A PDU that was received before an earlier CmdSN, with the data that belongs to it.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) pdu: Pdu,
    pub(super) bhs: Bhs,
    /// The connection on which the PDU arrived.
    pub(super) allegiance: Instance,
    /// Unsolicited Data-Out of the command that arrived before its turn, with headers: up to
    /// FirstBurstLength.
    pub(super) data: Vec<(DataOut, Bhs)>,
    /// The bytes of `data`, with at least KEPT_DATA_OUT for each PDU. Limits the data that one
    /// command may keep.
    pub(super) data_bytes: usize,
    pub(super) begun: Instant,
    /// The charge for the memory that the PDU and `data` use.
    pub(super) charge: Charge,
    /// True if the data was dropped for lack of memory. The command is answered with BUSY in its
    /// turn.
    pub(super) is_shed: bool,
    /// True if the data was dropped and the last Data-Out of its burst has arrived, so that no more
    /// unsolicited data follows.
    pub(super) has_ended: bool,
}
