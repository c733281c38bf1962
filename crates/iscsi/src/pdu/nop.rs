//! NOP-Out and NOP-In (RFC 7143, 11.18, 11.19).

use bytes::Bytes;
use scsi::Lun;

use super::{Itt, Numbers, Ttt};
use crate::Serial;

/// A ping from the initiator (`itt` set), or its answer to one (`ttt` set).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NopOut {
    /// Deliver at once.
    pub immediate: bool,
    /// As in the NOP-In answered.
    pub lun: Lun,
    /// The tag if an answer is wanted, else NONE.
    pub itt: Itt,
    /// The tag of the NOP-In answered, else NONE.
    pub ttt: Ttt,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// Bytes to be echoed.
    pub data: Bytes,
}

/// A ping from the target (`ttt` set), its answer to one (`itt` set), or news of the window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NopIn {
    /// Chosen by the target if it wants an answer.
    pub lun: Lun,
    /// The tag of the NOP-Out answered, else NONE.
    pub itt: Itt,
    /// The tag if an answer is wanted, else NONE.
    pub ttt: Ttt,
    /// Sequence numbers; `stat_sn` is consumed only by an answer (`itt` set).
    pub numbers: Numbers,
    /// The bytes echoed.
    pub data: Bytes,
}
