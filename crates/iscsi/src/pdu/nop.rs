//! NOP-Out and NOP-In (RFC 7143, 11.18, 11.19).

use bytes::Bytes;
use scsi::Lun;

use super::header::{self, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, Ttt};
use crate::Serial;

/// A ping from the initiator (`itt` is set), or its answer to a ping (`ttt` is set).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NopOut {
    /// True if the target delivers the PDU at once, outside the CmdSN order.
    pub immediate: bool,
    /// The LUN of the NOP-In to which this NOP-Out is the answer.
    pub lun: Lun,
    /// The tag of a ping that requests an answer, otherwise NONE.
    pub itt: Itt,
    /// The tag of the answered NOP-In, otherwise NONE.
    pub ttt: Ttt,
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
    /// The ping data, which the target must repeat in its answer.
    pub data: Bytes,
}

/// A ping from the target (`ttt` is set), its answer to a ping (`itt` is set), or an update of the
/// command window.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NopIn {
    /// A value that the target chooses if it requests an answer; the answer repeats it.
    pub lun: Lun,
    /// The tag of the answered NOP-Out, otherwise NONE.
    pub itt: Itt,
    /// The tag of a ping that requests an answer, otherwise NONE.
    pub ttt: Ttt,
    /// Only an answer (`itt` is set) consumes `stat_sn`.
    pub numbers: Numbers,
    /// The data of the answered ping.
    pub data: Bytes,
}

impl NopOut {
    pub(super) const OPCODE: u8 = 0x00;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Self {
        Self {
            immediate: header::is_immediate(bhs),
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
            data,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let opcode = Self::OPCODE | header::immediate_bit(self.immediate);
        let mut bhs = header::header(opcode, FINAL, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        header::with_data(bhs, self.data)
    }
}

impl NopIn {
    pub(super) const OPCODE: u8 = 0x20;

    pub(super) fn parse(bhs: &Bhs, data: Bytes) -> Self {
        Self {
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            numbers: header::numbers(bhs),
            data,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_numbers(&mut bhs, self.numbers);
        header::with_data(bhs, self.data)
    }
}
