//! The login at the initiator (RFC 7143, 6.3, 11.12, 11.13).

use bytes::Bytes;

use super::{
    EXCHANGES_MAX, EstablishedLogin, SessionType,
    chap::{Challenge, ChapKeys, InitiatorChap, ProofFailure, Prover},
    exchange::{Inbox, LoginTextOutbox},
};
use crate::{
    Cid, Isid, Itt, Serial, Tsih,
    keys::{self, IscsiRole, KeyError, Negotiation, NegotiationOffer},
    pdu::{LoginRequest, LoginResponse, LoginStage, LoginStatus},
};

/// The names that the initiator sends in a login.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InitiatorNames {
    pub initiator_name: String,
    pub initiator_alias: Option<String>,
    /// TargetName; `None` opens a discovery session.
    pub target_name: Option<String>,
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum LoginFailure {
    /// The target has refused the login with this status.
    #[error("the target refused the login: {0:?}")]
    Refused(LoginStatus),
    /// The target's text is malformed, or violates the rules of the negotiation.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The target failed to authenticate, or violated CHAP.
    #[error("the target failed to authenticate: {0}")]
    Proof(&'static str),
    /// A field of the response does not match the request.
    #[error("the target violated the login protocol: {0}")]
    Protocol(&'static str),
}

impl From<ProofFailure> for LoginFailure {
    fn from(failure: ProofFailure) -> Self {
        match failure {
            ProofFailure::Keys(error) => Self::Keys(error),
            ProofFailure::Proof(what) => Self::Proof(what),
        }
    }
}

/// The next step after a login response.
#[derive(Clone, Debug)]
pub enum InitiatorStep {
    /// Send this login request, and pass the response to the login.
    Send(LoginRequest),
    /// The login succeeded; full feature phase begins.
    Established(Box<EstablishedLogin>),
    /// The target redirects the initiator: close the connection and log in at this address.
    Redirected {
        /// The new address as `domainname[:port]`, with IPv6 addresses in brackets.
        address: String,
        /// True if the initiator should always use the new address from now on.
        permanent: bool,
    },
    /// The login failed; close the connection.
    Failed(LoginFailure),
}

/// One login at the initiator. The security stage sends the names and AuthMethod; the operational
/// stage sends all other keys. Every request asks for the next stage (T bit), so a login takes two
/// round trips if the target agrees. With CHAP, the T bit is set only once our response is sent,
/// which makes four round trips.
pub struct InitiatorLogin {
    names: InitiatorNames,
    negotiation: Negotiation,
    isid: Isid,
    tsih: Tsih,
    cid: Cid,
    cmd_sn: Serial,
    exp_stat_sn: Serial,
    stage: LoginStage,
    exchanges: u32,
    /// True if the last request asked for the next stage (T).
    asked: bool,
    /// The CHAP exchange; `None` without CHAP, or once the target has chosen None.
    prover: Option<Prover>,
    inbox: Inbox,
    outbox: LoginTextOutbox,
}

impl InitiatorLogin {
    /// Makes a login. A `tsih` of 0 requests a new session, whose first CmdSN is `cmd_sn`. Another
    /// `tsih` adds a connection to that session, or replaces the connection `cid` of it.
    ///
    /// # Panics
    ///
    /// If the offer is out of range: see [`NegotiationOffer::validate`].
    #[must_use]
    pub fn new(
        offer: NegotiationOffer,
        names: InitiatorNames,
        isid: Isid,
        tsih: Tsih,
        cid: Cid,
        cmd_sn: Serial,
    ) -> Self {
        let mut negotiation = Negotiation::new(IscsiRole::Initiator, offer);
        negotiation.declared.discovery = names.target_name.is_none();
        if tsih != Tsih(0) {
            negotiation.join_session();
        }
        Self {
            names,
            negotiation,
            isid,
            tsih,
            cid,
            cmd_sn,
            exp_stat_sn: Serial::default(),
            stage: LoginStage::Security,
            exchanges: 0,
            asked: false,
            prover: None,
            inbox: Inbox::default(),
            outbox: LoginTextOutbox::default(),
        }
    }

    /// Proposes CHAP and None, or only CHAP if the target must authenticate as well. `challenge` is
    /// for the target; it must be new random bytes from the operating system.
    #[must_use]
    pub fn with_chap(mut self, chap: InitiatorChap, challenge: Challenge) -> Self {
        self.prover = Some(Prover::new(chap, challenge));
        self
    }

    /// Begins the login. Returns the first request.
    pub fn start(&mut self) -> LoginRequest {
        let mut text = Vec::new();
        keys::push(&mut text, "InitiatorName", &self.names.initiator_name);
        if let Some(alias) = &self.names.initiator_alias {
            keys::push(&mut text, "InitiatorAlias", alias);
        }
        if let Some(name) = &self.names.target_name {
            keys::push(&mut text, "TargetName", name);
        }
        // Only the leading connection may send SessionType (RFC 7143, 13.21); LIO refuses it from
        // others.
        if self.tsih == Tsih(0) {
            let normal = self.names.target_name.is_some();
            keys::push(&mut text, "SessionType", if normal { "Normal" } else { "Discovery" });
        }
        self.negotiation.propose_auth_method(self.auth_methods(), &mut text);
        self.outbox.put(text);
        self.request()
    }

    fn auth_methods(&self) -> &'static str {
        match &self.prover {
            None => "None",
            Some(prover) if prover.is_mutual() => "CHAP",
            Some(_) => "CHAP,None",
        }
    }

    pub fn handle_response(&mut self, mut response: LoginResponse) -> InitiatorStep {
        let text = std::mem::take(&mut response.text);
        let step = match response.status {
            LoginStatus::Success => self.step(&response, text),
            LoginStatus::TargetMovedTemporarily | LoginStatus::TargetMovedPermanently => {
                redirection(response.status, &text)
            }
            status => Err(LoginFailure::Refused(status)),
        };
        step.unwrap_or_else(InitiatorStep::Failed)
    }

    fn step(
        &mut self,
        response: &LoginResponse,
        text: Bytes,
    ) -> Result<InitiatorStep, LoginFailure> {
        self.check(response)?;
        self.exp_stat_sn = response.numbers.stat_sn.next();
        if !self.outbox.is_empty() {
            if response.continues || !text.is_empty() {
                return Err(LoginFailure::Protocol("text before our text was complete"));
            }
            return Ok(InitiatorStep::Send(self.request()));
        }
        let Some(text) = self.inbox.push(text, response.continues)? else {
            return Ok(InitiatorStep::Send(self.request()));
        };
        let mut pairs = keys::parse(&text)?;
        let chap = ChapKeys::take(&mut pairs);
        let mut answers = self.negotiation.receive(self.stage, &pairs)?;
        self.take_proof(&chap, &mut answers.text)?;
        if !response.transit {
            self.outbox.put(answers.text);
            return Ok(InitiatorStep::Send(self.request()));
        }
        if answers.awaited {
            return Err(LoginFailure::Protocol("a proposal at the end of a stage"));
        }
        if response.next_stage == LoginStage::FullFeature {
            return self.establish(response).map(|login| InitiatorStep::Established(login.into()));
        }
        self.stage = response.next_stage;
        let mut proposals = Vec::new();
        self.negotiation.propose_all(&mut proposals);
        self.outbox.put(proposals);
        Ok(InitiatorStep::Send(self.request()))
    }

    /// Processes AuthMethod and the CHAP keys of a text.
    fn take_proof(&mut self, keys: &ChapKeys<'_>, text: &mut Vec<u8>) -> Result<(), LoginFailure> {
        if let Some(chosen) = self.negotiation.declared.auth_method.take() {
            let is_proposed = self.auth_methods().split(',').any(|method| method == chosen);
            if !is_proposed || !keys.is_empty() {
                return Err(KeyError::Answer("AuthMethod".to_owned()).into());
            }
            match &mut self.prover {
                Some(prover) if chosen == "CHAP" => prover.begin(text),
                // The target has chosen AuthMethod=None, so the initiator does not have to authenticate itself.
                _ => self.prover = None,
            }
            return Ok(());
        }
        match &mut self.prover {
            Some(prover) => Ok(prover.receive(keys, text)?),
            None if keys.is_empty() => Ok(()),
            None => Err(LoginFailure::Proof("CHAP keys without a request")),
        }
    }

    /// Checks that the header of the response matches the request.
    fn check(&mut self, response: &LoginResponse) -> Result<(), LoginFailure> {
        let stage_after = if self.stage == LoginStage::Security {
            LoginStage::Operational
        } else {
            LoginStage::FullFeature
        };
        let final_response = response.transit && response.next_stage == LoginStage::FullFeature;
        let tsih_fits = match (self.tsih, response.tsih) {
            (Tsih(0), Tsih(0)) => !final_response,
            (Tsih(0), _) => true,
            (ours, theirs) => ours == theirs,
        };
        let complaint = if self.exchanges >= EXCHANGES_MAX {
            "no end of the login after 64 requests"
        } else if response.version_active != VERSION {
            "a version that was not offered"
        } else if response.itt != LOGIN_ITT {
            "wrong task tag"
        } else if response.isid != self.isid {
            "wrong ISID"
        } else if response.current_stage != self.stage {
            "wrong current stage"
        } else if response.transit && (response.continues || !self.asked) {
            "a transition that was not requested"
        } else if response.transit && response.next_stage != stage_after {
            "a transition to a stage that was not requested"
        } else if !tsih_fits {
            "wrong TSIH"
        } else {
            return Ok(());
        };
        Err(LoginFailure::Protocol(complaint))
    }

    /// Returns the next request with the next piece of text. The request with the last piece asks
    /// for the next stage.
    fn request(&mut self) -> LoginRequest {
        self.exchanges += 1;
        let (text, continues) = self.outbox.next();
        let may_ask = self.prover.as_ref().is_none_or(Prover::has_answered);
        self.asked = !continues && may_ask;
        let next_stage = match self.stage {
            _ if !self.asked => LoginStage::Security,
            LoginStage::Security => LoginStage::Operational,
            LoginStage::Operational | LoginStage::Reserved | LoginStage::FullFeature => {
                LoginStage::FullFeature
            }
        };
        LoginRequest {
            transit: self.asked,
            continues,
            current_stage: self.stage,
            next_stage,
            version_max: VERSION,
            version_min: VERSION,
            isid: self.isid,
            tsih: self.tsih,
            itt: LOGIN_ITT,
            cid: self.cid,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            text,
        }
    }

    fn establish(&mut self, response: &LoginResponse) -> Result<EstablishedLogin, LoginFailure> {
        let parameters = self.negotiation.conclude()?;
        let declared = std::mem::take(&mut self.negotiation.declared);
        let session_type =
            if declared.discovery { SessionType::Discovery } else { SessionType::Normal };
        Ok(EstablishedLogin {
            session_type,
            initiator_name: self.names.initiator_name.clone(),
            initiator_alias: self.names.initiator_alias.clone(),
            user: self.prover.take().map(Prover::into_user),
            target_name: self.names.target_name.clone(),
            target_alias: declared.target_alias,
            tpgt: declared.tpgt,
            isid: self.isid,
            tsih: response.tsih,
            cid: self.cid,
            parameters,
            cmd_sn: self.cmd_sn,
            exp_stat_sn: self.exp_stat_sn,
            exp_cmd_sn: response.numbers.exp_cmd_sn,
            max_cmd_sn: response.numbers.max_cmd_sn,
        })
    }
}

/// Returns the new address of the target (RFC 7143, 13.8). The address is unverified, so the caller
/// decides if it follows the redirection.
fn redirection(status: LoginStatus, text: &[u8]) -> Result<InitiatorStep, LoginFailure> {
    for pair in keys::pairs(text) {
        let ("TargetAddress", address) = pair? else { continue };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]%".contains(c);
        // Remove a portal group tag: RFC 7143 does not allow one here, but some targets append it.
        let address = address.split(',').next().unwrap_or_default();
        if address.is_empty() || !address.chars().all(is_plain) {
            return Err(KeyError::Value("TargetAddress".to_owned()).into());
        }
        return Ok(InitiatorStep::Redirected {
            address: address.to_owned(),
            permanent: status == LoginStatus::TargetMovedPermanently,
        });
    }
    Err(LoginFailure::Protocol("a redirection without an address"))
}

/// The protocol version that RFC 7143 defines.
const VERSION: u8 = 0;

/// The initiator task tag of login requests. No other task runs on a connection during its login,
/// so any tag is free.
const LOGIN_ITT: Itt = Itt(0);
