//! Data-Out, Data-In and Ready To Transfer (RFC 7143, 11.7, 11.8).

use bytes::Bytes;
use scsi::Lun;

use super::{DataSegment, Itt, Numbers, Ttt};
use crate::Serial;

/// The difference between announced and moved data (RFC 7143, 11.4.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Residual {
    /// Exactly what was announced.
    #[default]
    None,
    /// So many bytes fewer.
    Underflow(u32),
    /// So many bytes would not fit.
    Overflow(u32),
}

/// Data of a write, unsolicited (`ttt` is NONE) or asked for by an R2T.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DataOut {
    /// Last of its sequence.
    pub is_final: bool,
    /// As in the R2T; reserved otherwise.
    pub lun: Lun,
    /// Which command.
    pub itt: Itt,
    /// Which R2T.
    pub ttt: Ttt,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// Number within the sequence, from 0.
    pub data_sn: u32,
    /// Where the data belongs, counted from the command's first byte.
    pub buffer_offset: u32,
    /// The data.
    pub data: Bytes,
}

/// Data of a read, perhaps with the status in its last PDU.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DataIn {
    /// Last of its sequence.
    pub is_final: bool,
    /// Asks for a data acknowledgment (recovery level 1 and above).
    pub acknowledge: bool,
    /// Present in the last PDU of a command that ended in GOOD (phase collapse).
    pub status: Option<DataInStatus>,
    /// With `acknowledge`, the unit; else reserved.
    pub lun: Lun,
    /// Which command.
    pub itt: Itt,
    /// With `acknowledge`, the tag to answer with; else NONE.
    pub ttt: Ttt,
    /// Sequence numbers; `stat_sn` counts only where `status` is present.
    pub numbers: Numbers,
    /// Number within the command, from 0.
    pub data_sn: u32,
    /// Where the data belongs, counted from the command's first byte.
    pub buffer_offset: u32,
    /// The data.
    pub data: DataSegment,
}

/// Status carried by a Data-In.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DataInStatus {
    /// The SCSI status byte.
    pub status: u8,
    /// What was announced and not moved.
    pub residual: Residual,
}

/// The target asks for a burst of a write's data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReadyToTransfer {
    /// The unit.
    pub lun: Lun,
    /// Which command.
    pub itt: Itt,
    /// The tag that the data will carry.
    pub ttt: Ttt,
    /// Sequence numbers; `stat_sn` is the next one and is not consumed.
    pub numbers: Numbers,
    /// Number within the command, from 0.
    pub r2t_sn: u32,
    /// Where the burst begins.
    pub buffer_offset: u32,
    /// How long it is: 1 to MaxBurstLength bytes.
    pub desired_data_transfer_length: u32,
}
