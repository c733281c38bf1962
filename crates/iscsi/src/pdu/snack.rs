//! SNACK Request (RFC 7143, 11.16).

use scsi::Lun;

use super::header::{self, Encoded, FINAL, put_lun, put_u32};
use super::{Bhs, Itt, Ttt};
use crate::Serial;

/// What is missing, or acknowledged.
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
