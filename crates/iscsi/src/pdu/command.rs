//! SCSI Command and SCSI Response (RFC 7143, 11.3, 11.4).

use bytes::Bytes;
use scsi::{Cdb, Lun};

use super::{Itt, Numbers, Residual};
use crate::Serial;

/// A command on its way to a logical unit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiCommand {
    /// Deliver at once, outside the CmdSN order.
    pub immediate: bool,
    /// No unsolicited data follows in Data-Out PDUs.
    pub is_final: bool,
    /// The command returns data.
    pub read: bool,
    /// The command takes data.
    pub write: bool,
    /// The three ATTR bits: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// The addressed unit.
    pub lun: Lun,
    /// The tag that answers will carry.
    pub itt: Itt,
    /// Bytes the initiator means to transfer in the direction of `write`, else of `read`.
    pub expected_data_transfer_length: u32,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// The command, with an extended CDB joined to it (AHS type 1).
    pub cdb: Cdb,
    /// Bytes to be read by a bidirectional command (AHS type 2).
    pub bidirectional_read_length: Option<u32>,
    /// Immediate data.
    pub data: Bytes,
}

/// Status and sense data of a command.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ScsiResponse {
    /// Which command.
    pub itt: Itt,
    /// 0 completed at target, 1 target failure (RFC 7143, 11.4.3).
    pub response: u8,
    /// The SCSI status byte; meaningful when `response` is 0.
    pub status: u8,
    /// Only for a task reassigned or retried: the SNACK tag, else 0.
    pub snack_tag: u32,
    /// Sequence numbers.
    pub numbers: Numbers,
    /// How many Data-In and R2T PDUs were sent for the command.
    pub exp_data_sn: u32,
    /// What was announced and not moved, or the reverse.
    pub residual: Residual,
    /// The same for the read half of a bidirectional command.
    pub bidirectional_read_residual: Residual,
    /// Sense data as SPC-4 lays it out, without the SenseLength field in front; often empty.
    pub sense: Bytes,
}
