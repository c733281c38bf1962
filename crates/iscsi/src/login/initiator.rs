//! The initiator's side of a login (RFC 7143, 6.3, 11.12, 11.13).

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
    /// The target does not prove who it is, or breaks CHAP.
    #[error("the target does not prove who it is: {0}")]
    Proof(&'static str),
    /// A field of the response does not fit the request.
    #[error("the target broke the login protocol: {0}")]
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

/// What the initiator does with a login response.
#[derive(Clone, Debug)]
pub enum InitiatorStep {
    /// Send it.
    Send(LoginRequest),
    /// Full feature phase.
    Established(Box<EstablishedLogin>),
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

/// The initiator's side of one login: names and AuthMethod in the security stage, everything
/// else in the operational stage, each with T from the first request on, so that it takes two
/// round trips with a target that agrees. With CHAP to do, T waits for our proof: four round trips.
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
    /// The last request asked for the next stage.
    asked: bool,
    /// CHAP, until the target has chosen None.
    prover: Option<Prover>,
    inbox: Inbox,
    outbox: LoginTextOutbox,
}

impl InitiatorLogin {
    /// `tsih` 0 asks for a new session, whose first CmdSN is `cmd_sn`; any other for another
    /// connection of that session, or one in the place of the connection with the number `cid`.
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

    /// Proposes CHAP beside None; CHAP alone if the target has to prove itself too. The challenge is
    /// for that, and has to be fresh from the operating system's random source.
    #[must_use]
    pub fn with_chap(mut self, chap: InitiatorChap, challenge: Challenge) -> Self {
        self.prover = Some(Prover::new(chap, challenge));
        self
    }

    /// The first request.
    pub fn start(&mut self) -> LoginRequest {
        let mut text = Vec::new();
        keys::push(&mut text, "InitiatorName", &self.names.initiator_name);
        if let Some(alias) = &self.names.initiator_alias {
            keys::push(&mut text, "InitiatorAlias", alias);
        }
        if let Some(name) = &self.names.target_name {
            keys::push(&mut text, "TargetName", name);
        }
        // Only the leading connection may say it (RFC 7143, 13.21); LIO refuses others that do.
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

    /// The next response.
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
                return Err(LoginFailure::Protocol("text in the middle of ours"));
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

    /// The part of a text that is about who is who.
    fn take_proof(&mut self, keys: &ChapKeys<'_>, text: &mut Vec<u8>) -> Result<(), LoginFailure> {
        if let Some(chosen) = self.negotiation.declared.auth_method.take() {
            let is_proposed = self.auth_methods().split(',').any(|method| method == chosen);
            if !is_proposed || !keys.is_empty() {
                return Err(KeyError::Answer("AuthMethod".to_owned()).into());
            }
            match &mut self.prover {
                Some(prover) if chosen == "CHAP" => prover.begin(text),
                // It does not want to know who we are.
                _ => self.prover = None,
            }
            return Ok(());
        }
        match &mut self.prover {
            Some(prover) => Ok(prover.receive(keys, text)?),
            None if keys.is_empty() => Ok(()),
            None => Err(LoginFailure::Proof("CHAP keys that nobody asked for")),
        }
    }

    /// Does the response's header fit the request?
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
            "the login does not end"
        } else if response.version_active != VERSION {
            "another version than was offered"
        } else if response.itt != LOGIN_ITT {
            "another task tag"
        } else if response.isid != self.isid {
            "another ISID"
        } else if response.current_stage != self.stage {
            "another stage than the one we are in"
        } else if response.transit && (response.continues || !self.asked) {
            "a transition that was not asked for"
        } else if response.transit && response.next_stage != stage_after {
            "a transition to another stage than was asked for"
        } else if !tsih_fits {
            "TSIH"
        } else {
            return Ok(());
        };
        Err(LoginFailure::Protocol(complaint))
    }

    /// The next request, with the next piece of text; asks for the next stage when that was the
    /// last.
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

/// Where the target moved to (RFC 7143, 13.8). The address is the target's word: whether to
/// follow it is the caller's decision.
fn redirection(status: LoginStatus, text: &[u8]) -> Result<InitiatorStep, LoginFailure> {
    for pair in keys::pairs(text) {
        let ("TargetAddress", address) = pair? else { continue };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-:[]%".contains(c);
        // A portal group tag has no place here, but some targets append it.
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

/// RFC 7143's.
const VERSION: u8 = 0;

/// A login is alone on its connection: any tag will do.
const LOGIN_ITT: Itt = Itt(0);
