//! The PDUs of iSCSI (RFC 7143, 11), one kind in each file.

mod header;
mod data;
mod command;
mod task;
mod login;
mod text;
mod logout;
mod nop;
mod asynchronous;
mod reject;
mod snack;

use bytes::Bytes;
use smallvec::SmallVec;

pub use asynchronous::{AsyncEvent, AsyncMessage};
pub use command::{ScsiCommand, ScsiResponse};
pub use data::{DataIn, DataInStatus, DataOut, ReadyToTransfer, Residual};
pub use login::{LoginRequest, LoginResponse, LoginStage, LoginStatus};
pub use logout::{LogoutReason, LogoutRequest, LogoutResponse, LogoutResult};
pub use nop::{NopIn, NopOut};
pub use reject::{Reject, RejectReason};
pub use snack::{Snack, SnackKind};
pub use task::{TaskFunction, TaskFunctionResult, TaskRequest, TaskResponse};
pub use text::{TextRequest, TextResponse};

use crate::Serial;

/// The basic header segment, with which every PDU begins (RFC 7143, 11.2.1).
pub type Bhs = [u8; 48];

/// A data segment in pieces of memory, which are sent one after the other.
pub type DataSegment = SmallVec<[Bytes; 1]>;

/// Initiator task tag, by which the initiator identifies a task within its session.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Itt(pub u32);

/// Target transfer tag: identifies a transfer that the target has requested.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ttt(pub u32);

impl Default for Itt {
    fn default() -> Self {
        Self::NONE
    }
}

impl Itt {
    /// The reserved tag that stands for no task (RFC 7143, 11.2.1.8).
    pub const NONE: Self = Self(0xffff_ffff);
}

impl Ttt {
    /// The reserved tag that stands for no transfer (RFC 7143, 11.7.4).
    pub const NONE: Self = Self(0xffff_ffff);
}

/// Connection ID, by which the initiator identifies a connection within its session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cid(pub u16);

/// The initiator's part of the session identifier (RFC 7143, 11.12.5).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Isid(pub [u8; 6]);

/// The target's part of the session identifier; zero requests a new session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Tsih(pub u16);

/// StatSN, ExpCmdSN and MaxCmdSN, which PDUs from the target carry.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// The StatSN that this PDU consumes, or the next one if it consumes none.
    pub stat_sn: Serial,
    /// The CmdSN of the next command that the target expects.
    pub exp_cmd_sn: Serial,
    /// The last CmdSN that the target accepts.
    pub max_cmd_sn: Serial,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pdu {
    // The PDUs from here on are sent by the initiator.
    NopOut(NopOut),
    ScsiCommand(ScsiCommand),
    TaskRequest(TaskRequest),
    LoginRequest(LoginRequest),
    TextRequest(TextRequest),
    DataOut(DataOut),
    LogoutRequest(LogoutRequest),
    Snack(Snack),
    // The PDUs from here on are sent by the target.
    NopIn(NopIn),
    ScsiResponse(ScsiResponse),
    TaskResponse(TaskResponse),
    LoginResponse(LoginResponse),
    TextResponse(TextResponse),
    DataIn(DataIn),
    LogoutResponse(LogoutResponse),
    ReadyToTransfer(ReadyToTransfer),
    Async(AsyncMessage),
    Reject(Reject),
}

/// The error for an invalid header. The receiver decides if it ends the command, the connection or
/// the session.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// RFC 7143 does not define this opcode, or defines it for the other direction.
    #[error("opcode {0:#04x} is undefined or belongs to the other direction")]
    Opcode(u8),
    /// A field has a value that the standard excludes.
    #[error("{0} is not valid")]
    Field(&'static str),
}

impl Pdu {
    /// Parses a PDU from its header, additional header segments and data segment (without padding).
    ///
    /// Ignores reserved fields, and additional header segments and data in PDUs that have none.
    /// Does not check that the PDU is valid in the present state of the session.
    pub fn parse(bhs: &Bhs, ahs: &[u8], data: Bytes) -> Result<Self, ParseError> {
        Ok(match bhs[0] & OPCODE {
            NopOut::OPCODE => Self::NopOut(NopOut::parse(bhs, data)),
            ScsiCommand::OPCODE => Self::ScsiCommand(ScsiCommand::parse(bhs, ahs, data)?),
            TaskRequest::OPCODE => Self::TaskRequest(TaskRequest::parse(bhs)),
            LoginRequest::OPCODE => Self::LoginRequest(LoginRequest::parse(bhs, data)),
            TextRequest::OPCODE => Self::TextRequest(TextRequest::parse(bhs, data)),
            DataOut::OPCODE => Self::DataOut(DataOut::parse(bhs, data)),
            LogoutRequest::OPCODE => Self::LogoutRequest(LogoutRequest::parse(bhs)),
            Snack::OPCODE => Self::Snack(Snack::parse(bhs)),
            NopIn::OPCODE => Self::NopIn(NopIn::parse(bhs, data)),
            ScsiResponse::OPCODE => Self::ScsiResponse(ScsiResponse::parse(bhs, data)?),
            TaskResponse::OPCODE => Self::TaskResponse(TaskResponse::parse(bhs)?),
            LoginResponse::OPCODE => Self::LoginResponse(LoginResponse::parse(bhs, data)?),
            TextResponse::OPCODE => Self::TextResponse(TextResponse::parse(bhs, data)),
            DataIn::OPCODE => Self::DataIn(DataIn::parse(bhs, data)?),
            LogoutResponse::OPCODE => Self::LogoutResponse(LogoutResponse::parse(bhs)?),
            ReadyToTransfer::OPCODE => Self::ReadyToTransfer(ReadyToTransfer::parse(bhs)?),
            AsyncMessage::OPCODE => Self::Async(AsyncMessage::parse(bhs, data)?),
            Reject::OPCODE => Self::Reject(Reject::parse(bhs, data)?),
            opcode => return Err(ParseError::Opcode(opcode)),
        })
    }

    /// Returns header, additional header segments (usually none) and data segment, without digests
    /// and padding. Lengths are filled in and reserved fields are zero.
    ///
    /// # Panics
    ///
    /// If the data segment is 2^24 bytes or longer, or a CDB longer than 260 bytes.
    #[must_use]
    pub fn encode(self) -> (Bhs, SmallVec<[u8; 16]>, DataSegment) {
        match self {
            Self::NopOut(pdu) => pdu.encode(),
            Self::ScsiCommand(pdu) => pdu.encode(),
            Self::TaskRequest(pdu) => pdu.encode(),
            Self::LoginRequest(pdu) => pdu.encode(),
            Self::TextRequest(pdu) => pdu.encode(),
            Self::DataOut(pdu) => pdu.encode(),
            Self::LogoutRequest(pdu) => pdu.encode(),
            Self::Snack(pdu) => pdu.encode(),
            Self::NopIn(pdu) => pdu.encode(),
            Self::ScsiResponse(pdu) => pdu.encode(),
            Self::TaskResponse(pdu) => pdu.encode(),
            Self::LoginResponse(pdu) => pdu.encode(),
            Self::TextResponse(pdu) => pdu.encode(),
            Self::DataIn(pdu) => pdu.encode(),
            Self::LogoutResponse(pdu) => pdu.encode(),
            Self::ReadyToTransfer(pdu) => pdu.encode(),
            Self::Async(pdu) => pdu.encode(),
            Self::Reject(pdu) => pdu.encode(),
        }
    }
}

/// The bits of the opcode in byte 0.
const OPCODE: u8 = 0x3f;
