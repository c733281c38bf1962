//! Logout Request and Response (RFC 7143, 11.14, 11.15).

use super::header::{self, Encoded, FINAL, put_numbers, put_u16, put_u32};
use super::{Bhs, Cid, Itt, Numbers, ParseError};
use crate::Serial;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum LogoutReason {
    CloseSession = 0,
    CloseConnection = 1,
    RemoveConnectionForRecovery = 2,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum LogoutResult {
    Closed = 0,
    CidNotFound = 1,
    RecoveryNotSupported = 2,
    CleanupFailed = 3,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutRequest {
    /// True if the target delivers the request at once, outside the CmdSN order.
    pub immediate: bool,
    /// `Err` holds a value that the standard does not define.
    pub reason: Result<LogoutReason, u8>,
    pub itt: Itt,
    /// The connection to log out; unused for `CloseSession`.
    pub cid: Cid,
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutResponse {
    pub result: LogoutResult,
    pub itt: Itt,
    pub numbers: Numbers,
    /// Seconds to wait before a reconnect.
    pub time2wait: u16,
    /// Seconds after `time2wait` for which the target keeps the tasks of the connection.
    pub time2retain: u16,
}

impl LogoutRequest {
    pub(super) const OPCODE: u8 = 0x06;

    pub(super) fn parse(bhs: &Bhs) -> Self {
        Self {
            immediate: header::is_immediate(bhs),
            reason: LogoutReason::parse(bhs[1] & !FINAL),
            itt: header::itt(bhs),
            cid: Cid(header::u16_at(bhs, 20)),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let reason = self.reason.map_or_else(|code| code, |reason| reason as u8);
        let opcode = Self::OPCODE | header::immediate_bit(self.immediate);
        let mut bhs = header::header(opcode, FINAL | reason, self.itt);
        put_u16(&mut bhs, 20, self.cid.0);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        header::bare(bhs)
    }
}

impl LogoutResponse {
    pub(super) const OPCODE: u8 = 0x26;

    pub(super) fn parse(bhs: &Bhs) -> Result<Self, ParseError> {
        Ok(Self {
            result: LogoutResult::parse(bhs[2])?,
            itt: header::itt(bhs),
            numbers: header::numbers(bhs),
            time2wait: header::u16_at(bhs, 40),
            time2retain: header::u16_at(bhs, 42),
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let mut bhs = header::header(Self::OPCODE, FINAL, self.itt);
        bhs[2] = self.result as u8;
        put_numbers(&mut bhs, self.numbers);
        put_u16(&mut bhs, 40, self.time2wait);
        put_u16(&mut bhs, 42, self.time2retain);
        header::bare(bhs)
    }
}

impl LogoutReason {
    fn parse(code: u8) -> Result<Self, u8> {
        Ok(match code {
            0 => Self::CloseSession,
            1 => Self::CloseConnection,
            2 => Self::RemoveConnectionForRecovery,
            _ => return Err(code),
        })
    }
}

impl LogoutResult {
    fn parse(code: u8) -> Result<Self, ParseError> {
        Ok(match code {
            0 => Self::Closed,
            1 => Self::CidNotFound,
            2 => Self::RecoveryNotSupported,
            3 => Self::CleanupFailed,
            _ => return Err(ParseError::Field("logout response")),
        })
    }
}
