//! The login phase at the initiator and at the target (RFC 7143, 6).

pub mod chap;
mod exchange;
mod target;
mod initiator;

use self::chap::ChapTerms;
pub use self::{
    initiator::{InitiatorLogin, InitiatorNames, InitiatorStep, LoginFailure},
    target::{ClaimedIdentity, TargetLogin, TargetStep},
};
use crate::{Cid, Isid, Serial, Tsih, keys::Parameters, pdu::LoginStatus};

/// The type of a session (RFC 7143, 13.21).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum SessionType {
    /// The session allows SendTargets and logout only.
    Discovery,
    /// A session that may send all PDUs, unlike a discovery session.
    #[default]
    Normal,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EstablishedLogin {
    pub session_type: SessionType,
    pub initiator_name: String,
    /// InitiatorAlias: a description of the initiator for people to read.
    pub initiator_alias: Option<String>,
    /// The CHAP user as whom the initiator authenticated.
    pub user: Option<String>,
    /// The target; `None` in a discovery session.
    pub target_name: Option<String>,
    /// TargetAlias: a description of the target for people to read.
    pub target_alias: Option<String>,
    /// The tag of the target portal group; `None` if the target has not sent it.
    pub tpgt: Option<u16>,
    /// The initiator's part of the session identifier.
    pub isid: Isid,
    /// At the target: the TSIH that the initiator sent, 0 for a new session. The caller checks it,
    /// and assigns one to a new session. At the initiator: the TSIH that the target assigned.
    pub tsih: Tsih,
    pub cid: Cid,
    pub parameters: Parameters,
    /// The first CmdSN of full feature phase on a leading connection.
    pub cmd_sn: Serial,
    /// At the initiator: the StatSN of the final response plus one. At the target: ExpStatSN of the
    /// final request.
    pub exp_stat_sn: Serial,
    /// ExpCmdSN of the final login response. At the target this equals `cmd_sn`.
    pub exp_cmd_sn: Serial,
    /// MaxCmdSN of the final login response. At the target this equals `cmd_sn`.
    pub max_cmd_sn: Serial,
}

/// Decides which initiators may log in to which targets, and how they must authenticate.
///
/// A target that does not exist should be indistinguishable from one that the initiator may not
/// use. Either `admit` refuses both with [`LoginStatus::NotFound`], or it accepts both and
/// `authorize` refuses after the authentication.
pub trait Directory: Send + Sync {
    /// Returns the tag of the portal group if `initiator` may try to log in to `target`, or to a
    /// discovery session (`None`).
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, Denial>;

    /// Returns the authentication that the initiator must perform. Called after `admit`.
    fn authentication(&self, initiator: &str, target: Option<&str>) -> Authentication {
        let _ = (initiator, target);
        Authentication::default()
    }

    /// Checks that the initiator may log in as this CHAP user, or without authentication (`None`).
    /// Called after the authentication.
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        user: Option<&str>,
    ) -> Result<(), Denial> {
        let _ = (initiator, target, user);
        Ok(())
    }

    /// Returns TargetAlias, a description of the target for people to read.
    fn alias(&self, target: &str) -> Option<String> {
        let _ = target;
        None
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Denial {
    Refused(LoginStatus),
    /// The target is served elsewhere (RFC 7143, 11.13.5, statuses 0101h and 0102h).
    Moved {
        /// `host[:port]`, sent as TargetAddress without a portal group tag (RFC 7143, 13.8).
        address: String,
        /// True if the initiator should always use the new address from now on.
        permanent: bool,
    },
}

impl From<LoginStatus> for Denial {
    fn from(status: LoginStatus) -> Self {
        Self::Refused(status)
    }
}

#[derive(Clone, Debug)]
pub struct Authentication {
    /// True if the initiator may log in without authentication.
    pub none: bool,
    /// The terms of CHAP; `None` if CHAP is not possible.
    pub chap: Option<ChapTerms>,
}

impl Default for Authentication {
    /// Returns terms that require no authentication.
    fn default() -> Self {
        Self { none: true, chap: None }
    }
}

/// The most requests in one login. RFC 7143, 6.2 requires at least six exchanges; a text of 16 KiB
/// in pieces and a CHAP exchange stay far below this limit.
const EXCHANGES_MAX: u32 = 64;
