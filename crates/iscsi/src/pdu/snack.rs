//! The PDU SNACK Request, which asks the target to repeat lost PDUs (RFC 7143, 11.16).

use scsi::Lun;

use super::header::{self, Encoded, FINAL, put_lun, put_u32};
use super::{Bhs, Itt, Ttt};
use crate::Serial;

/// The kind of PDUs that a SNACK requests or acknowledges (RFC 7143, 11.16.1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum SnackKind {
    DataOrR2t = 0,
    Status = 1,
    DataAck = 2,
    RData = 3,
}

/// A SNACK request: the initiator requests lost PDUs, or acknowledges data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Snack {
    /// `Err` holds a value that the standard does not define.
    pub kind: Result<SnackKind, u8>,
    /// The LUN of the acknowledged Data-In; reserved otherwise.
    pub lun: Lun,
    /// The task whose PDUs are requested, or NONE for a Status SNACK.
    pub itt: Itt,
    /// The tag of the acknowledged Data-In; the SNACK tag of an R-Data SNACK; otherwise NONE.
    pub ttt: Ttt,
    pub exp_stat_sn: Serial,
    /// The DataSN, R2TSN or StatSN of the first missing PDU.
    pub begin: u32,
    /// The number of missing PDUs; 0 for all PDUs from `begin` on.
    pub run_length: u32,
}

impl Snack {
    pub(super) const OPCODE: u8 = 0x10;

    pub(super) fn parse(bhs: &Bhs) -> Self {
        Self {
            kind: SnackKind::parse(bhs[1] & KIND),
            lun: header::lun(bhs),
            itt: header::itt(bhs),
            ttt: header::ttt(bhs),
            exp_stat_sn: header::serial_at(bhs, 28),
            begin: header::u32_at(bhs, 40),
            run_length: header::u32_at(bhs, 44),
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let kind = self.kind.map_or_else(|code| code & KIND, |kind| kind as u8);
        let mut bhs = header::header(Self::OPCODE, FINAL | kind, self.itt);
        put_lun(&mut bhs, self.lun);
        put_u32(&mut bhs, 20, self.ttt.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        put_u32(&mut bhs, 40, self.begin);
        put_u32(&mut bhs, 44, self.run_length);
        header::bare(bhs)
    }
}

impl SnackKind {
    fn parse(code: u8) -> Result<Self, u8> {
        Ok(match code {
            0 => Self::DataOrR2t,
            1 => Self::Status,
            2 => Self::DataAck,
            3 => Self::RData,
            _ => return Err(code),
        })
    }
}

const KIND: u8 = 0x0f;
