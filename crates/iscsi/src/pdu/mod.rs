//! Protocol data units (RFC 7143, 11): one family a file.

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

/// The basic header segment: 48 bytes that open every PDU (RFC 7143, 11.2.1).
pub type Bhs = [u8; 48];

/// Payload: pieces that read as one run of bytes.
pub type DataSegment = SmallVec<[Bytes; 1]>;

/// Initiator task tag: names a task within its session.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Itt(pub u32);

/// Target transfer tag: names a transfer that the target asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ttt(pub u32);

impl Default for Itt {
    fn default() -> Self {
        Self::NONE
    }
}

impl Itt {
    /// No task (RFC 7143, 11.2.1.8).
    pub const NONE: Self = Self(0xffff_ffff);
}

impl Ttt {
    /// No transfer (RFC 7143, 11.7.4).
    pub const NONE: Self = Self(0xffff_ffff);
}

/// Connection id: the initiator's number for one connection of a session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Cid(pub u16);

/// The initiator's half of a session's name (RFC 7143, 11.12.5).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Isid(pub [u8; 6]);

/// The target's half of a session's name; zero asks for a new session.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Tsih(pub u16);

/// StatSN, ExpCmdSN and MaxCmdSN: what a target PDU tells of both sequences.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Numbers {
    /// This status, or the next one where the PDU carries none.
    pub stat_sn: Serial,
    /// The next command the target expects.
    pub exp_cmd_sn: Serial,
    /// The last command the target has room for.
    pub max_cmd_sn: Serial,
}

/// Any PDU, in either direction.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Pdu {
    // initiator to target
    NopOut(NopOut),
    ScsiCommand(ScsiCommand),
    TaskRequest(TaskRequest),
    LoginRequest(LoginRequest),
    TextRequest(TextRequest),
    DataOut(DataOut),
    LogoutRequest(LogoutRequest),
    Snack(Snack),
    // target to initiator
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

/// A header that means nothing: how far the damage reaches is the receiver's to say.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ParseError {
    /// An opcode that RFC 7143 does not define, or that goes the other way.
    #[error("opcode {0:#04x} is not one to receive here")]
    Opcode(u8),
    /// A field holds a value that the standard excludes.
    #[error("{0} is not valid")]
    Field(&'static str),
}

impl Pdu {
    /// Reads a PDU from its header, additional headers and data segment (without padding).
    ///
    /// Reserved fields are ignored, as are additional headers and data where the type has none.
    /// Whether the PDU fits the state of a session is not judged here.
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

    /// The bytes of the PDU without digests and padding: header with its lengths filled in,
    /// additional header segments (usually none), data segment. Reserved fields are zero.
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

/// The opcode's bits in byte 0.
const OPCODE: u8 = 0x3f;
