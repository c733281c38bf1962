//! Text Request and Response (RFC 7143, 11.10, 11.11).

use bytes::Bytes;
use scsi::Lun;

use super::{Itt, Numbers, Ttt};
use crate::Serial;

/// Keys from the initiator in full feature phase.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextRequest {
    /// Deliver at once.
    pub immediate: bool,
    /// The initiator has nothing more to say.
    pub is_final: bool,
    /// The text goes on in the next request.
    pub continues: bool,
    /// As in the response that `ttt` is from.
    pub lun: Lun,
    /// The tag of the exchange.
    pub itt: Itt,
    /// From the last response, or NONE.
    pub ttt: Ttt,
    /// Place in the session's command order.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// Text keys.
    pub text: Bytes,
}

/// Keys from the target.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextResponse {
    /// The target has nothing more to say.
    pub is_final: bool,
    /// The text goes on in the next response.
    pub continues: bool,
    /// Chosen by the target.
    pub lun: Lun,
    /// As in the request.
    pub itt: Itt,
    /// To be repeated in the next request; NONE with `is_final`.
    pub ttt: Ttt,
    /// Sequence numbers.
    pub numbers: Numbers,
    /// Text keys.
    pub text: Bytes,
}
