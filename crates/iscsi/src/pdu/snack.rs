//! SNACK Request (RFC 7143, 11.16).

use scsi::Lun;

use super::{Itt, Ttt};
use crate::Serial;

/// What is missing, or acknowledged.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum SnackKind {
    DataOrR2t = 0,
    Status = 1,
    DataAck = 2,
    RData = 3,
}

/// The initiator asks for PDUs again, or acknowledges data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Snack {
    /// What. A value that the standard does not define stays a number.
    pub kind: Result<SnackKind, u8>,
    /// With a data acknowledgment, as in the Data-In.
    pub lun: Lun,
    /// Which task, or NONE.
    pub itt: Itt,
    /// Which Data-In asked for an acknowledgment; a SNACK tag for R-Data; else NONE.
    pub ttt: Ttt,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// First number missing.
    pub begin: u32,
    /// How many; 0: all from there on.
    pub run_length: u32,
}
