//! Text Request and Response (RFC 7143, 11.10, 11.11).

use bytes::Bytes;
use scsi::Lun;

use super::header::{self, CONTINUE, Encoded, FINAL, put_lun, put_numbers, put_u32};
use super::{Bhs, Itt, Numbers, Ttt};
use crate::Serial;

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextRequest {
    /// True if the target delivers the request at once, outside the CmdSN order.
    pub immediate: bool,
    /// F: the initiator has no more text to send.
    pub is_final: bool,
    /// C: the text continues in the next request.
    pub continues: bool,
    /// The LUN of the text response that `ttt` comes from.
    pub lun: Lun,
    pub itt: Itt,
    /// The target transfer tag of the last text response, or NONE in a new exchange.
    pub ttt: Ttt,
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
    pub text: Bytes,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TextResponse {
    /// F: the target has no more text to send.
    pub is_final: bool,
    /// C: the text continues in the next response.
    pub continues: bool,
    /// A LUN value that the target chooses, and that the initiator's next request must repeat.
    pub lun: Lun,
    pub itt: Itt,
    /// The tag that the initiator's next request must carry; NONE if `is_final` is set.
    pub ttt: Ttt,
    pub numbers: Numbers,
    pub text: Bytes,
}

impl TextRequest {
    pub(super) const OPCODE: u8 = 0x04;

    pub(super) fn parse(bhs: &Bhs, text: Bytes) -> Self {
        Self {
            immediate: header::is_immediate(bhs),
            is_final: header::is_final(bhs),
            continues: bhs[1] & CONTINUE != 0,
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
            text,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let flags = header::flag(self.is_final, FINAL) | header::flag(self.continues, CONTINUE);
        let opcode = Self::OPCODE | header::immediate_bit(self.immediate);
        let mut bhs = header::header(opcode, flags, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        header::with_data(bhs, self.text)
    }
}

impl TextResponse {
    pub(super) const OPCODE: u8 = 0x24;

    pub(super) fn parse(bhs: &Bhs, text: Bytes) -> Self {
        Self {
            is_final: header::is_final(bhs),
            continues: bhs[1] & CONTINUE != 0,
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            numbers: header::numbers(bhs),
            text,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let flags = header::flag(self.is_final, FINAL) | header::flag(self.continues, CONTINUE);
        let mut bhs = header::header(Self::OPCODE, flags, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_numbers(&mut bhs, self.numbers);
        header::with_data(bhs, self.text)
    }
}
