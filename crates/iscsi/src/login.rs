//! The stages of login, both sides (RFC 7143, 6).

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

/// What a session is for (RFC 7143, 13.21).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum SessionType {
    /// Only SendTargets and logout.
    Discovery,
    /// Everything.
    #[default]
    Normal,
}

/// The result of a login that succeeded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EstablishedLogin {
    /// What the session is for.
    pub session_type: SessionType,
    /// Who logged in.
    pub initiator_name: String,
    /// What it calls itself for humans.
    pub initiator_alias: Option<String>,
    /// The CHAP user that the initiator proved to be.
    pub user: Option<String>,
    /// Where to; `None` for discovery.
    pub target_name: Option<String>,
    /// What the target calls itself for humans.
    pub target_alias: Option<String>,
    /// The target portal group; `None` if the target did not say.
    pub tpgt: Option<u16>,
    /// The initiator's half of the session's name.
    pub isid: Isid,
    /// At the target: as the initiator sent it, 0 for a new session; the caller judges it and
    /// gives the session's own. At the initiator: as the target gave it.
    pub tsih: Tsih,
    /// The connection.
    pub cid: Cid,
    /// What both agreed on.
    pub parameters: Parameters,
    /// The first CmdSN of full feature phase on a leading connection.
    pub cmd_sn: Serial,
    /// At the initiator: the StatSN of the final response plus one. At the target: as in the
    /// final request.
    pub exp_stat_sn: Serial,
    /// The target's window in the final response; at the target both are `cmd_sn`.
    pub exp_cmd_sn: Serial,
    /// See `exp_cmd_sn`.
    pub max_cmd_sn: Serial,
}

/// Which initiators may see which targets, and what they have to prove.
///
/// A target that does not exist and one that is not for who asks should look the same: then
/// `admit` refuses both with [`LoginStatus::NotFound`], or lets both try to prove who they are
/// and `authorize` refuses.
pub trait Directory: Send + Sync {
    /// May `initiator` try to log in to `target`, or look for targets (`None`)? The answer is the
    /// tag of the portal group, or why not.
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, Denial>;

    /// What it has to prove. Asked after `admit`.
    fn authentication(&self, initiator: &str, target: Option<&str>) -> Authentication {
        let _ = (initiator, target);
        Authentication::default()
    }

    /// May it come in as this CHAP user, or without a proof (`None`)? Asked when the proof is
    /// there, or was found not to be needed.
    fn authorize(
        &self,
        initiator: &str,
        target: Option<&str>,
        user: Option<&str>,
    ) -> Result<(), Denial> {
        let _ = (initiator, target, user);
        Ok(())
    }

    /// The target's name for humans, if it has one.
    fn alias(&self, target: &str) -> Option<String> {
        let _ = target;
        None
    }
}

/// Why somebody is not let in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Denial {
    /// With this status.
    Refused(LoginStatus),
    /// It is served elsewhere (RFC 7143, 11.13.5, statuses 0101h and 0102h).
    Moved {
        /// `host[:port]`, told as TargetAddress without a portal group tag (RFC 7143, 13.8).
        address: String,
        /// Whether the initiator need not come here again.
        permanent: bool,
    },
}

impl From<LoginStatus> for Denial {
    fn from(status: LoginStatus) -> Self {
        Self::Refused(status)
    }
}

/// What an initiator has to prove before it is let in.
#[derive(Clone, Debug)]
pub struct Authentication {
    /// Nothing, if it does not want to.
    pub none: bool,
    /// Who it is, by CHAP; `None` if nobody could.
    pub chap: Option<ChapTerms>,
}

impl Default for Authentication {
    /// Nothing.
    fn default() -> Self {
        Self { none: true, chap: None }
    }
}

/// Requests of one login. RFC 7143 6.2 asks for six exchanges at least; a text of 16 KiB in
/// pieces and a CHAP exchange stay far below this.
const EXCHANGES_MAX: u32 = 64;
