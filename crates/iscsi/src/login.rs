//! The stages of login, both sides (RFC 7143, 6).

use std::sync::Arc;

use crate::{
    Cid, Isid, Serial, Tsih,
    keys::{KeyError, Offer, Parameters},
    pdu::{LoginRequest, LoginResponse, LoginStatus},
};

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
pub struct Established {
    /// What the session is for.
    pub session_type: SessionType,
    /// Who logged in.
    pub initiator_name: String,
    /// What it calls itself for humans.
    pub initiator_alias: Option<String>,
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

/// Which initiators may see which targets.
pub trait Directory: Send + Sync {
    /// May `initiator` log in to `target`, or look for targets (`None`)? The answer is the tag of
    /// the portal group, or the status to refuse with.
    fn admit(&self, initiator: &str, target: Option<&str>) -> Result<u16, LoginStatus>;

    /// The target's name for humans, if it has one.
    fn alias(&self, target: &str) -> Option<String> {
        let _ = target;
        None
    }
}

/// What the target does with a login request.
#[derive(Clone, Debug)]
pub enum TargetStep {
    /// Send it; the login goes on.
    Respond(LoginResponse),
    /// Give the session a TSIH, put it into the response, send it: full feature phase.
    Established {
        /// Without numbers and TSIH.
        response: LoginResponse,
        /// The result.
        login: Box<Established>,
    },
    /// Send it and close.
    Refused(LoginResponse),
}

/// The target's side of one login.
pub struct TargetLogin {
    offer: Offer,
    directory: Arc<dyn Directory>,
}

impl TargetLogin {
    /// A connection that has sent nothing yet.
    #[must_use]
    pub fn new(offer: Offer, directory: Arc<dyn Directory>) -> Self {
        Self { offer, directory }
    }

    /// The next request. Numbers (StatSN, ExpCmdSN, MaxCmdSN) of the response are the caller's.
    pub fn handle_request(&mut self, _request: LoginRequest) -> TargetStep {
        let _ = (&self.offer, &self.directory);
        todo!()
    }

    /// The response that ends this login with `status`, for reasons only the caller knows.
    #[must_use]
    pub fn refusal(&self, _status: LoginStatus) -> LoginResponse {
        todo!()
    }
}

/// Who logs in where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InitiatorNames {
    /// InitiatorName.
    pub initiator_name: String,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// TargetName; `None` opens a discovery session.
    pub target_name: Option<String>,
}

/// Why a login did not succeed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoginFailure {
    /// The target said no.
    #[error("the target refused the login: {0:?}")]
    Refused(LoginStatus),
    /// The target's text does not read or does not fit.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// A field of the response does not fit the request.
    #[error("the target broke the login protocol: {0}")]
    Protocol(&'static str),
}

/// What the initiator does with a login response.
#[derive(Clone, Debug)]
pub enum InitiatorStep {
    /// Send it.
    Send(LoginRequest),
    /// Full feature phase.
    Established(Box<Established>),
    /// Close, and log in there.
    Redirected {
        /// `domainname[:port]`, IPv6 in brackets.
        address: String,
        /// Remember the new address.
        permanent: bool,
    },
    /// Close.
    Failed(LoginFailure),
}

/// The initiator's side of one login.
pub struct InitiatorLogin {
    offer: Offer,
    names: InitiatorNames,
}

impl InitiatorLogin {
    /// `tsih` 0 asks for a new session, whose first CmdSN is `cmd_sn`.
    #[must_use]
    pub fn new(
        offer: Offer,
        names: InitiatorNames,
        _isid: Isid,
        _tsih: Tsih,
        _cid: Cid,
        _cmd_sn: Serial,
    ) -> Self {
        Self { offer, names }
    }

    /// The first request.
    pub fn start(&mut self) -> LoginRequest {
        let _ = (&self.offer, &self.names);
        todo!()
    }

    /// The next response.
    pub fn handle_response(&mut self, _response: LoginResponse) -> InitiatorStep {
        todo!()
    }
}
