//! Command order: the window of command numbers, and the commands that arrived before their turn (RFC 7143, 4.2.2.1).

use std::time::Instant;

use crate::{Bhs, Pdu, Serial, pdu::DataOut, window::TargetCommandWindow};

use super::{
    task::Instance,
    waiting::{Charge, Stall},
};

/// The order in which the commands of a session are performed.
#[derive(Debug)]
pub(super) struct CommandOrder {
    pub(super) window: TargetCommandWindow<Early>,
    /// The number of the missing command for which others wait, and for how long it has been missing.
    pub(super) hole: Option<(Serial, Stall)>,
}

/// A PDU that arrived before its turn.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) pdu: Pdu,
    pub(super) bhs: Bhs,
    /// The connection on which it came.
    pub(super) allegiance: Instance,
    /// Unsolicited data of the command that came before its turn, with its headers: up to FirstBurstLength.
    pub(super) data: Vec<(DataOut, Bhs)>,
    /// The bytes that `data` counts for.
    pub(super) data_bytes: usize,
    /// When the PDU arrived.
    pub(super) begun: Instant,
    /// The charge for its data.
    pub(super) charge: Charge,
    /// Its data was dropped for lack of room. The command is answered with BUSY in its turn.
    pub(super) is_shed: bool,
    /// The last PDU of its unsolicited data has come, and was dropped.
    pub(super) has_ended: bool,
}
