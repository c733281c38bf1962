//! Login Request and Response (RFC 7143, 11.12, 11.13).

use bytes::Bytes;

use super::{Cid, Isid, Itt, Numbers, Tsih};
use crate::Serial;

/// The stages of a connection (RFC 7143, 11.12.3).
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Stage {
    /// SecurityNegotiation.
    #[default]
    Security = 0,
    /// LoginOperationalNegotiation.
    Operational = 1,
    /// FullFeaturePhase.
    FullFeature = 3,
}

/// One step of the initiator's login.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginRequest {
    /// Ready to go to `next_stage`.
    pub transit: bool,
    /// The text goes on in the next request.
    pub continues: bool,
    /// CSG.
    pub current_stage: Stage,
    /// NSG; meaningful with `transit`.
    pub next_stage: Stage,
    /// Highest protocol version the initiator speaks; 0 is RFC 7143's.
    pub version_max: u8,
    /// Lowest.
    pub version_min: u8,
    /// The initiator's half of the session name.
    pub isid: Isid,
    /// The target's half; 0 for a new session.
    pub tsih: Tsih,
    /// Tag, the same in all requests of a login.
    pub itt: Itt,
    /// The connection within the session.
    pub cid: Cid,
    /// First CmdSN of a new session, else the current one.
    pub cmd_sn: Serial,
    /// Statuses up to before this one have arrived.
    pub exp_stat_sn: Serial,
    /// Text keys.
    pub text: Bytes,
}

/// One step of the target's.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LoginResponse {
    /// The target agrees to go to `next_stage`.
    pub transit: bool,
    /// The text goes on in the next response.
    pub continues: bool,
    /// CSG.
    pub current_stage: Stage,
    /// NSG; meaningful with `transit`.
    pub next_stage: Stage,
    /// Highest version the target speaks.
    pub version_max: u8,
    /// The version in use.
    pub version_active: u8,
    /// As in the request.
    pub isid: Isid,
    /// The target's half of the session name, given in the final response.
    pub tsih: Tsih,
    /// As in the request.
    pub itt: Itt,
    /// Sequence numbers.
    pub numbers: Numbers,
    /// Whether the login goes on, and why not.
    pub status: LoginStatus,
    /// Text keys.
    pub text: Bytes,
}

/// Status-Class and Status-Detail (RFC 7143, 11.13.5).
#[allow(missing_docs)]
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
