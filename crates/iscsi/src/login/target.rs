//! The login at the target (RFC 7143, 6.3, 11.12, 11.13).

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Authentication, Denial, Directory, EXCHANGES_MAX, EstablishedLogin, SessionType,
    chap::{Challenge, ChapKeys, ChapRefusal, ChapVerdict, Verifier},
    exchange::{Inbox, LoginTextOutbox},
};
use crate::{
    keys::{self, Declared, IscsiRole, KeyError, Negotiation, NegotiationOffer},
    pdu::{LoginRequest, LoginResponse, LoginStage, LoginStatus},
};

/// The next step after a login request.
#[derive(Clone, Debug)]
pub enum TargetStep {
    /// Send the response and continue the login.
    Respond(LoginResponse),
    /// The login succeeded. Assign a TSIH to the session, put it into the response, and send the
    /// response. Full feature phase then begins.
    Established {
        /// The final response. The caller fills in the sequence numbers and the TSIH.
        response: LoginResponse,
        login: Box<EstablishedLogin>,
    },
    /// Send the response and close the connection.
    Refused(LoginResponse),
}

/// The state of the initiator's authentication.
///
/// ```text
/// Open ── AuthMethod=None chosen, or stage left without authentication ──> Settled
///   └──── AuthMethod=CHAP chosen ──> Chap ── right response ───────────────────^
/// ```
enum InitiatorProof {
    Open,
    Chap(Box<Verifier>),
    Settled { user: Option<String> },
}

/// The names that an initiator claims, which may be false. The iSCSI names contain no characters
/// that could forge a line of the log messages; the user's name may.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClaimedIdentity {
    pub initiator: Option<String>,
    pub target: Option<String>,
    /// CHAP_N: any text of up to 16 KiB.
    pub user: Option<String>,
}

/// One login at the target.
///
/// ```text
///            first request, CSG 0                     CSG 1
///                 v                                     v
///             Security ── T, NSG 1 (or 3: see next_stage) ──> Operational ── T, NSG 3 ──> done
///                 └────────────────────── T, NSG 3 ───────────────────────────────────────^
/// ```
pub struct TargetLogin {
    directory: Arc<dyn Directory>,
    negotiation: Negotiation,
    /// The first request without its text. The header fields of later requests must agree with it.
    first: Option<LoginRequest>,
    stage: LoginStage,
    exchanges: u32,
    inbox: Inbox,
    outbox: LoginTextOutbox,
    /// True if the text that is being sent, or was sent last, ends with our own proposals. The
    /// initiator must answer them before the next stage.
    proposed: bool,
    /// The target portal group tag; `None` until `admit` of the [`Directory`] has accepted the
    /// initiator.
    tpgt: Option<u16>,
    /// The address to which a refusal redirects the initiator.
    moved_to: Option<String>,
    authentication: Authentication,
    /// The challenge for CHAP. The CHAP exchange takes it, so a login has at most one CHAP
    /// exchange.
    challenge: Option<Challenge>,
    proof: InitiatorProof,
    reason: Option<&'static str>,
    /// The names that the initiator claimed. Set when the login is established, since `negotiation`
    /// is empty from then on.
    established: Option<ClaimedIdentity>,
}

impl TargetLogin {
    /// Makes the login of a connection on which nothing was received yet.
    ///
    /// # Panics
    ///
    /// If the offer is out of range: see [`NegotiationOffer::validate`].
    #[must_use]
    pub fn new(offer: NegotiationOffer, directory: Arc<dyn Directory>) -> Self {
        Self {
            directory,
            negotiation: Negotiation::new(IscsiRole::Target, offer),
            first: None,
            stage: LoginStage::Security,
            exchanges: 0,
            inbox: Inbox::default(),
            outbox: LoginTextOutbox::default(),
            proposed: false,
            tpgt: None,
            moved_to: None,
            authentication: Authentication::default(),
            challenge: None,
            proof: InitiatorProof::Open,
            reason: None,
            established: None,
        }
    }

    /// Sets the challenge for CHAP: new random bytes from the operating system. Without it, an
    /// initiator that must authenticate by CHAP is refused with status 0300h.
    #[must_use]
    pub fn with_challenge(mut self, challenge: Challenge) -> Self {
        self.challenge = Some(challenge);
        self
    }

    /// Returns the names that the initiator claims, for log messages.
    #[must_use]
    pub fn claims(&self) -> ClaimedIdentity {
        if let Some(claims) = &self.established {
            return claims.clone();
        }
        let Declared { initiator_name, target_name, .. } = &self.negotiation.declared;
        let user = match &self.proof {
            InitiatorProof::Chap(verifier) => verifier.claimed.clone(),
            InitiatorProof::Settled { user } => user.clone(),
            InitiatorProof::Open => None,
        };
        ClaimedIdentity { initiator: initiator_name.clone(), target: target_name.clone(), user }
    }

    /// Returns the reason why the authentication failed, for our own log messages. The reason is
    /// not sent to the initiator.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Processes the next request. The caller fills in StatSN, ExpCmdSN and MaxCmdSN of the
    /// response.
    pub fn handle_request(&mut self, mut request: LoginRequest) -> TargetStep {
        let text = std::mem::take(&mut request.text);
        self.first.get_or_insert_with(|| {
            self.stage = request.current_stage;
            request.clone()
        });
        match self.step(&request, text) {
            Ok(step) => step,
            Err(status) => TargetStep::Refused(self.refusal(status)),
        }
    }

    /// Returns the response that refuses this login with `status`. Use it for a reason that only
    /// the caller knows.
    #[must_use]
    pub fn refusal(&self, status: LoginStatus) -> LoginResponse {
        // T, CSG and NSG are reserved in a refusal (RFC 7143, 6.3.1).
        let mut response = self.response(LoginStage::Security);
        response.status = status;
        if let Some(address) = &self.moved_to {
            let mut text = Vec::new();
            keys::push(&mut text, "TargetAddress", address);
            response.text = text.into();
        }
        response
    }

    fn step(&mut self, request: &LoginRequest, text: Bytes) -> Result<TargetStep, LoginStatus> {
        self.check(request)?;
        if !self.outbox.is_empty() {
            // A part of our text is still to be sent. Until then, the initiator may send only empty
            // requests that fetch the rest.
            if !text.is_empty() || request.continues {
                return Err(LoginStatus::InitiatorError);
            }
            return self.conclude_exchange(request);
        }
        let whole = self.inbox.push(text, request.continues).map_err(status)?;
        let Some(text) = whole else {
            return Ok(TargetStep::Respond(self.response(self.stage)));
        };
        let mut reply = self.take_text(&text, request.transit)?;
        self.proposed = request.transit && self.must_propose();
        if self.proposed {
            self.negotiation.propose_needed(&mut reply);
        }
        self.outbox.put(reply);
        self.conclude_exchange(request)
    }

    /// Checks that the header of the request matches the login so far.
    fn check(&mut self, request: &LoginRequest) -> Result<(), LoginStatus> {
        self.exchanges += 1;
        if self.established.is_some() {
            return Err(LoginStatus::InvalidDuringLogin);
        }
        if self.exchanges > EXCHANGES_MAX {
            return Err(LoginStatus::InitiatorError);
        }
        if request.version_min > VERSION {
            return Err(LoginStatus::UnsupportedVersion);
        }
        let first = self.first.as_ref().expect("handle_request keeps the first request");
        let same = (request.isid, request.tsih, request.cid, request.itt)
            == (first.isid, first.tsih, first.cid, first.itt);
        let in_stage = request.current_stage == self.stage
            && matches!(self.stage, LoginStage::Security | LoginStage::Operational);
        let may_transit = !request.continues
            && request.next_stage > request.current_stage
            && request.next_stage != LoginStage::Reserved;
        if !same || !in_stage || (request.transit && !may_transit) {
            return Err(LoginStatus::InitiatorError);
        }
        Ok(())
    }

    /// Processes a complete login text of the initiator. Returns the answers and this target's declarations.
    fn take_text(&mut self, text: &[u8], transit: bool) -> Result<Vec<u8>, LoginStatus> {
        let mut pairs = keys::parse(text).map_err(status)?;
        let chap = ChapKeys::take(&mut pairs);
        let answers = self.negotiation.receive(self.stage, &pairs).map_err(status)?;
        let mut reply = Vec::with_capacity(answers.text.len() + 64);
        if self.tpgt.is_none() {
            self.admit(&mut reply)?;
        }
        self.take_proof(&chap, transit, &mut reply)?;
        reply.extend_from_slice(&answers.text);
        if self.stage == LoginStage::Operational {
            self.negotiation.declare_length(&mut reply);
        }
        Ok(reply)
    }

    /// Asks the directory to admit the initiator, and appends the portal group tag to `reply`.
    fn admit(&mut self, reply: &mut Vec<u8>) -> Result<(), LoginStatus> {
        self.negotiation.close_identity();
        let Declared { initiator_name, target_name, discovery, .. } = &self.negotiation.declared;
        if initiator_name.is_none() || (target_name.is_none() && !*discovery) {
            return Err(LoginStatus::MissingParameter);
        }
        let (initiator, target) = self.who();
        let admitted = self.directory.admit(initiator, target);
        self.authentication = self.directory.authentication(initiator, target);
        let tpgt = admitted.map_err(|denial| self.deny(denial))?;
        keys::push(reply, "TargetPortalGroupTag", &tpgt.to_string());
        self.tpgt = Some(tpgt);
        Ok(())
    }

    /// Returns the initiator, and the target unless this is a discovery session. A TargetName in a
    /// discovery session has no effect.
    fn who(&self) -> (&str, Option<&str>) {
        let Declared { initiator_name, target_name, discovery, .. } = &self.negotiation.declared;
        let target = target_name.as_deref().filter(|_| !*discovery);
        (initiator_name.as_deref().unwrap_or_default(), target)
    }

    /// Processes AuthMethod and the CHAP keys of a text.
    fn take_proof(
        &mut self,
        keys: &ChapKeys<'_>,
        transit: bool,
        reply: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        match &mut self.proof {
            InitiatorProof::Chap(verifier) => {
                let verdict = verifier.receive(keys, reply);
                match verdict.map_err(|refusal| self.refuse(refusal))? {
                    ChapVerdict::Continue => Ok(()),
                    ChapVerdict::Proven { user, counter } => {
                        self.settle(Some(&user), reply)?;
                        let proof = InitiatorProof::Settled { user: Some(user) };
                        let InitiatorProof::Chap(verifier) =
                            std::mem::replace(&mut self.proof, proof)
                        else {
                            unreachable!("a verdict comes from CHAP")
                        };
                        let proved = counter.map_or(Ok(()), |c| verifier.prove(&c, reply));
                        proved.map_err(|refusal| self.refuse(refusal))
                    }
                }
            }
            _ if !keys.is_empty() => {
                Err(self.refuse((LoginStatus::InitiatorError, "CHAP keys out of order")))
            }
            InitiatorProof::Open => match self.negotiation.declared.auth_method.take() {
                Some(offered) => self.choose_method(&offered, reply),
                None if transit || self.stage != LoginStage::Security => self
                    .admit_without_authentication("the initiator offers no authentication", reply),
                None => Ok(()),
            },
            InitiatorProof::Settled { .. } => Ok(()),
        }
    }

    fn choose_method(&mut self, offered: &str, reply: &mut Vec<u8>) -> Result<(), LoginStatus> {
        let is_offered = |method| offered.split(',').any(|offered| offered == method);
        let Authentication { none, chap } = &self.authentication;
        let none = *none && is_offered("None");
        match chap {
            Some(terms) if is_offered("CHAP") && (terms.preferred || !none) => {
                let Some(challenge) = self.challenge.take() else {
                    return Err(self.refuse((LoginStatus::TargetError, "no challenge was given")));
                };
                self.proof = InitiatorProof::Chap(Verifier::new(terms.clone(), challenge).into());
                keys::push(reply, "AuthMethod", "CHAP");
                Ok(())
            }
            _ if none => {
                keys::push(reply, "AuthMethod", "None");
                self.admit_without_authentication("", reply)
            }
            _ => {
                let reason = "no authentication method in common";
                Err(self.refuse((LoginStatus::AuthenticationFailure, reason)))
            }
        }
    }

    fn admit_without_authentication(
        &mut self,
        reason: &'static str,
        reply: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        if !self.authentication.none {
            return Err(self.refuse((LoginStatus::AuthenticationFailure, reason)));
        }
        self.settle(None, reply)?;
        self.proof = InitiatorProof::Settled { user: None };
        Ok(())
    }

    /// Asks the directory to authorize the initiator after its authentication, and appends the
    /// target's alias to `reply`.
    fn settle(&mut self, user: Option<&str>, reply: &mut Vec<u8>) -> Result<(), LoginStatus> {
        let (initiator, target) = self.who();
        let authorized = self.directory.authorize(initiator, target, user);
        let alias = target.and_then(|name| self.directory.alias(name));
        authorized.map_err(|denial| self.deny(denial))?;
        if let Some(alias) = &alias {
            keys::push(reply, "TargetAlias", alias);
        }
        self.negotiation.declared.target_alias = alias;
        Ok(())
    }

    fn deny(&mut self, denial: Denial) -> LoginStatus {
        match denial {
            Denial::Refused(status) => status,
            Denial::Moved { address, permanent } => {
                self.moved_to = Some(address);
                if permanent {
                    LoginStatus::TargetMovedPermanently
                } else {
                    LoginStatus::TargetMovedTemporarily
                }
            }
        }
    }

    fn refuse(&mut self, (status, reason): ChapRefusal) -> LoginStatus {
        self.reason = Some(reason);
        status
    }

    /// Sends the next piece of text. With the last piece, moves to the next stage if the initiator
    /// requested that.
    fn conclude_exchange(&mut self, request: &LoginRequest) -> Result<TargetStep, LoginStatus> {
        let (text, continues) = self.outbox.next();
        let mut response = LoginResponse { continues, text, ..self.response(self.stage) };
        // Stay in the stage while our proposals have no answer, and stay in the security stage
        // until the initiator is authenticated. iPXE requests the transition at every step of CHAP.
        let is_proved = matches!(self.proof, InitiatorProof::Settled { .. });
        if !request.transit || continues || self.proposed || self.must_propose() || !is_proved {
            return Ok(TargetStep::Respond(response));
        }
        response.transit = true;
        response.next_stage = self.next_stage(request.next_stage);
        if response.next_stage != LoginStage::FullFeature {
            self.stage = response.next_stage;
            return Ok(TargetStep::Respond(response));
        }
        let login = Box::new(self.establish(request)?);
        Ok(TargetStep::Established { response, login })
    }

    fn must_propose(&self) -> bool {
        self.stage == LoginStage::Operational && self.negotiation.needs_proposal()
    }

    /// Returns the stage that the initiator wants. Does not skip the operational stage if the
    /// defaults of the standard are unacceptable.
    fn next_stage(&self, wanted: LoginStage) -> LoginStage {
        if self.stage == LoginStage::Security && self.negotiation.needs_proposal() {
            LoginStage::Operational
        } else {
            wanted
        }
    }

    fn establish(&mut self, request: &LoginRequest) -> Result<EstablishedLogin, LoginStatus> {
        let parameters = self.negotiation.conclude().map_err(status)?;
        self.established = Some(self.claims());
        let declared = std::mem::take(&mut self.negotiation.declared);
        let session_type =
            if declared.discovery { SessionType::Discovery } else { SessionType::Normal };
        Ok(EstablishedLogin {
            session_type,
            initiator_name: declared.initiator_name.expect("admission requires an initiator name"),
            initiator_alias: declared.initiator_alias,
            user: match std::mem::replace(&mut self.proof, InitiatorProof::Open) {
                InitiatorProof::Settled { user } => user,
                InitiatorProof::Open | InitiatorProof::Chap(_) => {
                    unreachable!("full feature phase requires authentication")
                }
            },
            target_name: declared.target_name.filter(|_| !declared.discovery),
            target_alias: declared.target_alias,
            tpgt: self.tpgt,
            isid: request.isid,
            tsih: request.tsih,
            cid: request.cid,
            parameters,
            cmd_sn: request.cmd_sn,
            exp_stat_sn: request.exp_stat_sn,
            exp_cmd_sn: request.cmd_sn,
            max_cmd_sn: request.cmd_sn,
        })
    }

    /// Returns an empty response in `stage`.
    fn response(&self, stage: LoginStage) -> LoginResponse {
        let first = self.first.clone().unwrap_or_default();
        LoginResponse {
            current_stage: stage,
            version_max: VERSION,
            version_active: VERSION,
            isid: first.isid,
            tsih: first.tsih,
            itt: first.itt,
            ..LoginResponse::default()
        }
    }
}

/// Returns the status for an error in the text (RFC 7143, 11.13.5).
fn status(error: KeyError) -> LoginStatus {
    match error {
        KeyError::NoAuthMethod => LoginStatus::AuthenticationFailure,
        KeyError::SessionType => LoginStatus::SessionTypeNotSupported,
        _ => LoginStatus::InitiatorError,
    }
}

/// The protocol version that RFC 7143 defines.
const VERSION: u8 = 0;
