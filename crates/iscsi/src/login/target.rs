//! The target's side of a login (RFC 7143, 6.3, 11.12, 11.13).

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Denial, Directory, EXCHANGES_MAX, Established, SessionType,
    exchange::{Inbox, Outbox},
};
use crate::{
    keys::{self, Declared, KeyError, Negotiation, Offer, Side},
    pdu::{LoginRequest, LoginResponse, LoginStatus, Stage},
};

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
    /// The first request without its text: later ones must agree with it.
    first: Option<LoginRequest>,
    stage: Stage,
    exchanges: u32,
    inbox: Inbox,
    outbox: Outbox,
    /// The text in the outbox, or the last one, ends with proposals of ours.
    proposed: bool,
    /// Known once the first whole text was admitted.
    tpgt: Option<u16>,
    /// Where a refusal sends the initiator.
    moved_to: Option<String>,
    finished: bool,
}

impl TargetLogin {
    /// A connection that has sent nothing yet.
    ///
    /// # Panics
    ///
    /// If the offer is out of range: see [`Offer::validate`].
    #[must_use]
    pub fn new(offer: Offer, directory: Arc<dyn Directory>) -> Self {
        Self {
            directory,
            negotiation: Negotiation::new(Side::Target, offer),
            first: None,
            stage: Stage::Security,
            exchanges: 0,
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            proposed: false,
            tpgt: None,
            moved_to: None,
            finished: false,
        }
    }

    /// The next request. Numbers (StatSN, ExpCmdSN, MaxCmdSN) of the response are the caller's.
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

    /// The response that ends this login with `status`, for reasons that only the caller knows.
    #[must_use]
    pub fn refusal(&self, status: LoginStatus) -> LoginResponse {
        // T, CSG and NSG are reserved in a refusal (RFC 7143, 6.3.1).
        let mut response = self.response(Stage::Security);
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
            // Our text is not out yet: the initiator may only ask for more of it.
            if !text.is_empty() || request.continues {
                return Err(LoginStatus::InitiatorError);
            }
            return self.conclude_exchange(request);
        }
        let whole = self.inbox.push(text, request.continues).map_err(status)?;
        let Some(text) = whole else {
            return Ok(TargetStep::Respond(self.response(self.stage)));
        };
        let mut reply = self.take_text(&text)?;
        self.proposed = request.transit && self.must_propose();
        if self.proposed {
            self.negotiation.propose_needed(&mut reply);
        }
        self.outbox.put(reply);
        self.conclude_exchange(request)
    }

    /// Does the request's header fit the login so far?
    fn check(&mut self, request: &LoginRequest) -> Result<(), LoginStatus> {
        self.exchanges += 1;
        if self.finished {
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
        let in_stage =
            request.current_stage == self.stage && request.current_stage != Stage::FullFeature;
        let may_transit = !request.continues && request.next_stage > request.current_stage;
        if !same || !in_stage || (request.transit && !may_transit) {
            return Err(LoginStatus::InitiatorError);
        }
        Ok(())
    }

    /// Takes a whole text; returns the answers to it and what we have to say ourselves.
    fn take_text(&mut self, text: &[u8]) -> Result<Vec<u8>, LoginStatus> {
        let pairs = keys::parse(text).map_err(status)?;
        let answers = self.negotiation.receive(self.stage, &pairs).map_err(status)?;
        let mut reply = Vec::with_capacity(answers.text.len() + 64);
        if self.tpgt.is_none() {
            self.admit(&mut reply)?;
        }
        reply.extend_from_slice(&answers.text);
        if self.stage == Stage::Operational {
            self.negotiation.declare_length(&mut reply);
        }
        Ok(reply)
    }

    /// Who is it, and may it come in? Says which portal group this is.
    fn admit(&mut self, reply: &mut Vec<u8>) -> Result<(), LoginStatus> {
        self.negotiation.close_identity();
        let Declared { initiator_name, target_name, target_alias, discovery, .. } =
            &mut self.negotiation.declared;
        let initiator = initiator_name.as_deref().ok_or(LoginStatus::MissingParameter)?;
        // A target named along with Discovery selects nothing.
        let target = target_name.as_deref().filter(|_| !*discovery);
        if target.is_none() && !*discovery {
            return Err(LoginStatus::MissingParameter);
        }
        let tpgt = match self.directory.admit(initiator, target) {
            Ok(tpgt) => tpgt,
            Err(Denial::Refused(status)) => return Err(status),
            Err(Denial::Moved { address, permanent }) => {
                self.moved_to = Some(address);
                return Err(if permanent {
                    LoginStatus::TargetMovedPermanently
                } else {
                    LoginStatus::TargetMovedTemporarily
                });
            }
        };
        *target_alias = target.and_then(|name| self.directory.alias(name));
        if let Some(alias) = target_alias {
            keys::push(reply, "TargetAlias", alias);
        }
        keys::push(reply, "TargetPortalGroupTag", &tpgt.to_string());
        self.tpgt = Some(tpgt);
        Ok(())
    }

    /// Sends the next piece of text, and with the last goes on to the next stage if the initiator
    /// asked for it.
    fn conclude_exchange(&mut self, request: &LoginRequest) -> Result<TargetStep, LoginStatus> {
        let (text, continues) = self.outbox.next();
        let mut response = LoginResponse { continues, text, ..self.response(self.stage) };
        // What we propose has to be answered in this stage.
        if !request.transit || continues || self.proposed || self.must_propose() {
            return Ok(TargetStep::Respond(response));
        }
        response.transit = true;
        response.next_stage = self.next_stage(request.next_stage);
        if response.next_stage != Stage::FullFeature {
            self.stage = response.next_stage;
            return Ok(TargetStep::Respond(response));
        }
        let login = Box::new(self.establish(request)?);
        Ok(TargetStep::Established { response, login })
    }

    fn must_propose(&self) -> bool {
        self.stage == Stage::Operational && self.negotiation.needs_proposal()
    }

    /// Goes where the initiator wants, except past the operational stage when the standard's
    /// defaults will not do.
    fn next_stage(&self, wanted: Stage) -> Stage {
        if self.stage == Stage::Security && self.negotiation.needs_proposal() {
            Stage::Operational
        } else {
            wanted
        }
    }

    fn establish(&mut self, request: &LoginRequest) -> Result<Established, LoginStatus> {
        let parameters = self.negotiation.conclude().map_err(status)?;
        self.finished = true;
        let declared = std::mem::take(&mut self.negotiation.declared);
        let session_type =
            if declared.discovery { SessionType::Discovery } else { SessionType::Normal };
        Ok(Established {
            session_type,
            initiator_name: declared.initiator_name.expect("nobody is admitted without"),
            initiator_alias: declared.initiator_alias,
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

    /// A response in `stage` that says nothing yet.
    fn response(&self, stage: Stage) -> LoginResponse {
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

/// Whose fault it is, in the words of RFC 7143, 11.13.5.
fn status(error: KeyError) -> LoginStatus {
    match error {
        KeyError::NoAuthMethod => LoginStatus::AuthenticationFailure,
        KeyError::SessionType => LoginStatus::SessionTypeNotSupported,
        _ => LoginStatus::InitiatorError,
    }
}

/// RFC 7143's.
const VERSION: u8 = 0;
