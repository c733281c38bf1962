//! Login Request and Response (RFC 7143, 11.12, 11.13).

use bytes::Bytes;

use super::header::{self, CONTINUE, Encoded, FINAL, IMMEDIATE, put_numbers, put_u16, put_u32};
use super::{Bhs, Cid, Isid, Itt, Numbers, ParseError, Tsih};
use crate::Serial;

/// The stages of a connection (RFC 7143, 11.12.3).
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum LoginStage {
    #[default]
    Security = 0,
    Operational = 1,
    /// A code that the standard reserves. A request may contain it, because the target must answer
    /// such a request with a login status. The code is invalid in a response.
    Reserved = 2,
    FullFeature = 3,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginRequest {
    /// T: the initiator is ready to move to `next_stage`.
    pub transit: bool,
    /// C: the text continues in the next request.
    pub continues: bool,
    pub current_stage: LoginStage,
    /// NSG; valid if `transit` is set.
    pub next_stage: LoginStage,
    /// The highest protocol version of the initiator; RFC 7143 defines version 0.
    pub version_max: u8,
    pub version_min: u8,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// The target's part of the session identifier; 0 for a new session.
    pub tsih: Tsih,
    /// Initiator task tag; all requests of a login have the same one.
    pub itt: Itt,
    pub cid: Cid,
    /// The first CmdSN of a new session, or the current one of an existing session.
    pub cmd_sn: Serial,
    pub exp_stat_sn: Serial,
    pub text: Bytes,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginResponse {
    /// T: the target moves to `next_stage`.
    pub transit: bool,
    /// C: the text continues in the next response.
    pub continues: bool,
    pub current_stage: LoginStage,
    /// NSG; valid if `transit` is set.
    pub next_stage: LoginStage,
    pub version_max: u8,
    /// The version of the iSCSI protocol that is in use.
    pub version_active: u8,
    pub isid: Isid,
    /// The target's part of the session identifier, assigned in the final response.
    pub tsih: Tsih,
    pub itt: Itt,
    pub numbers: Numbers,
    pub status: LoginStatus,
    pub text: Bytes,
}

/// Status-Class and Status-Detail (RFC 7143, 11.13.5).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u16)]
pub enum LoginStatus {
    #[default]
    Success = 0x0000,
    TargetMovedTemporarily = 0x0101,
    TargetMovedPermanently = 0x0102,
    InitiatorError = 0x0200,
    AuthenticationFailure = 0x0201,
    AuthorizationFailure = 0x0202,
    NotFound = 0x0203,
    TargetRemoved = 0x0204,
    UnsupportedVersion = 0x0205,
    TooManyConnections = 0x0206,
    MissingParameter = 0x0207,
    CannotIncludeInSession = 0x0208,
    SessionTypeNotSupported = 0x0209,
    SessionDoesNotExist = 0x020a,
    InvalidDuringLogin = 0x020b,
    TargetError = 0x0300,
    ServiceUnavailable = 0x0301,
    OutOfResources = 0x0302,
}

impl LoginRequest {
    pub(super) const OPCODE: u8 = 0x03;

    pub(super) fn parse(bhs: &Bhs, text: Bytes) -> Self {
        let stages = Stages::parse(bhs[1]);
        Self {
            transit: stages.transit,
            continues: bhs[1] & CONTINUE != 0,
            current_stage: stages.current,
            next_stage: stages.next,
            version_max: bhs[2],
            version_min: bhs[3],
            isid: isid(bhs),
            tsih: Tsih(header::u16_at(bhs, 14)),
            itt: header::itt(bhs),
            cid: Cid(header::u16_at(bhs, 20)),
            cmd_sn: header::serial_at(bhs, 24),
            exp_stat_sn: header::serial_at(bhs, 28),
            text,
        }
    }

    pub(super) fn encode(self) -> Encoded {
        let stages =
            Stages { transit: self.transit, current: self.current_stage, next: self.next_stage };
        let flags = stages.encode() | header::flag(self.continues, CONTINUE);
        let mut bhs = header::header(Self::OPCODE | IMMEDIATE, flags, self.itt);
        bhs[2] = self.version_max;
        bhs[3] = self.version_min;
        bhs[8..14].copy_from_slice(&self.isid.0);
        put_u16(&mut bhs, 14, self.tsih.0);
        put_u16(&mut bhs, 20, self.cid.0);
        put_u32(&mut bhs, 24, self.cmd_sn.0);
        put_u32(&mut bhs, 28, self.exp_stat_sn.0);
        header::with_data(bhs, self.text)
    }
}

impl LoginResponse {
    pub(super) const OPCODE: u8 = 0x23;

    pub(super) fn parse(bhs: &Bhs, text: Bytes) -> Result<Self, ParseError> {
        let stages = Stages::parse(bhs[1]);
        for (stage, field) in [(stages.current, "CSG"), (stages.next, "NSG")] {
            if stage == LoginStage::Reserved {
                return Err(ParseError::Field(field));
            }
        }
        Ok(Self {
            transit: stages.transit,
            continues: bhs[1] & CONTINUE != 0,
            current_stage: stages.current,
            next_stage: stages.next,
            version_max: bhs[2],
            version_active: bhs[3],
            isid: isid(bhs),
            tsih: Tsih(header::u16_at(bhs, 14)),
            itt: header::itt(bhs),
            numbers: header::numbers(bhs),
            status: LoginStatus::parse(header::u16_at(bhs, 36))?,
            text,
        })
    }

    pub(super) fn encode(self) -> Encoded {
        let stages =
            Stages { transit: self.transit, current: self.current_stage, next: self.next_stage };
        let flags = stages.encode() | header::flag(self.continues, CONTINUE);
        let mut bhs = header::header(Self::OPCODE, flags, self.itt);
        bhs[2] = self.version_max;
        bhs[3] = self.version_active;
        bhs[8..14].copy_from_slice(&self.isid.0);
        put_u16(&mut bhs, 14, self.tsih.0);
        put_numbers(&mut bhs, self.numbers);
        put_u16(&mut bhs, 36, self.status as u16);
        header::with_data(bhs, self.text)
    }
}

/// The T bit, CSG and NSG in byte 1. NSG is reserved if T is 0.
struct Stages {
    transit: bool,
    current: LoginStage,
    next: LoginStage,
}

impl Stages {
    fn parse(flags: u8) -> Self {
        let transit = flags & FINAL != 0;
        let next = if transit { LoginStage::parse(flags) } else { LoginStage::Security };
        Self { transit, current: LoginStage::parse(flags >> 2), next }
    }

    fn encode(self) -> u8 {
        let next = if self.transit { FINAL | self.next as u8 } else { 0 };
        (self.current as u8) << 2 | next
    }
}

impl LoginStage {
    /// Parses a stage, which is coded in the two low bits of CSG or NSG.
    fn parse(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Security,
            1 => Self::Operational,
            2 => Self::Reserved,
            _ => Self::FullFeature,
        }
    }
}

impl LoginStatus {
    /// Parses a login status. A detail code that RFC 7143 does not define is replaced by the
    /// general one of its class, since the class alone determines how to react.
    fn parse(code: u16) -> Result<Self, ParseError> {
        Ok(match code {
            0x0000 => Self::Success,
            0x0102 => Self::TargetMovedPermanently,
            0x0201 => Self::AuthenticationFailure,
            0x0202 => Self::AuthorizationFailure,
            0x0203 => Self::NotFound,
            0x0204 => Self::TargetRemoved,
            0x0205 => Self::UnsupportedVersion,
            0x0206 => Self::TooManyConnections,
            0x0207 => Self::MissingParameter,
            0x0208 => Self::CannotIncludeInSession,
            0x0209 => Self::SessionTypeNotSupported,
            0x020a => Self::SessionDoesNotExist,
            0x020b => Self::InvalidDuringLogin,
            0x0301 => Self::ServiceUnavailable,
            0x0302 => Self::OutOfResources,
            0x0100..=0x01ff => Self::TargetMovedTemporarily,
            0x0200..=0x02ff => Self::InitiatorError,
            0x0300..=0x03ff => Self::TargetError,
            _ => return Err(ParseError::Field("Status-Class")),
        })
    }
}

fn isid(bhs: &Bhs) -> Isid {
    Isid([bhs[8], bhs[9], bhs[10], bhs[11], bhs[12], bhs[13]])
}
