//! A connection before it is let in: nothing but login PDUs, little memory, a deadline.

use std::{sync::Arc, time::Instant};

use crate::{
    Cid, Pdu, Serial, Tsih,
    codec::{Digests, PduFrame, PduOutput},
    keys::NegotiationOffer,
    login::{
        ClaimedIdentity, Directory, EstablishedLogin, TargetLogin, TargetStep, chap::Challenge,
    },
    pdu::{LoginResponse, LoginStatus, Numbers},
};

use super::{connection::TargetSessionError, session::Session, settings::Settings};

/// The login phase of one connection (RFC 7143, 6.3).
///
/// ```text
/// handle_frame() ──▶ Continue │ Established ──▶ accept(), join() or refuse() │ Close │ NoLogin
/// ```
pub struct LoginPhase {
    login: TargetLogin,
    settings: Settings,
    /// `None` until the first request.
    stat_sn: Option<Serial>,
    cmd_sn: Serial,
    /// The session is there already.
    joins: bool,
    deadline: Instant,
    output: PduOutput,
    last: Option<(LoginResponse, Box<EstablishedLogin>)>,
}

/// How far a login has come.
#[derive(Debug)]
pub enum LoginProgress<'a> {
    /// It goes on; there may be output.
    Continue,
    /// The initiator is let in as far as names go: `accept` or `refuse`.
    Established(&'a EstablishedLogin),
    /// Write the output and close.
    Close(LoginStatus),
    /// The first PDU is no login request: close the connection without an answer (RFC 7143, 4.2.4).
    NoLogin,
}

/// A login that the session did not take: write the output and close.
pub struct NotJoined {
    /// With the refusal in its output.
    pub phase: LoginPhase,
    /// Why.
    pub status: LoginStatus,
}

impl LoginPhase {
    /// A connection that has just been accepted.
    #[must_use]
    pub fn new(
        offer: NegotiationOffer,
        directory: Arc<dyn Directory>,
        settings: Settings,
        now: Instant,
    ) -> Self {
        let deadline = now + settings.login_time;
        Self {
            login: TargetLogin::new(offer, directory),
            settings,
            stat_sn: None,
            cmd_sn: Serial(0),
            joins: false,
            deadline,
            output: PduOutput::default(),
            last: None,
        }
    }

    /// With random bytes for CHAP: see [`TargetLogin::with_challenge`].
    #[must_use]
    pub fn with_challenge(mut self, challenge: Challenge) -> Self {
        self.login = self.login.with_challenge(challenge);
        self
    }

    /// Who the initiator says to be.
    #[must_use]
    pub fn claims(&self) -> ClaimedIdentity {
        self.login.claims()
    }

    /// Why a proof was refused, for our own events.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.login.reason()
    }

    /// What is to be sent.
    #[must_use]
    pub fn output(&self) -> &PduOutput {
        &self.output
    }

    /// What is to be sent, for the driver to take from.
    pub fn output_mut(&mut self) -> &mut PduOutput {
        &mut self.output
    }

    /// When `handle_timeout` is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), TargetSessionError> {
        if now < self.deadline { Ok(()) } else { Err(TargetSessionError::LoginTimeout) }
    }

    /// Handles a received PDU. No further PDU is accepted after `EstablishedLogin`, `Close` and `NoLogin`.
    pub fn handle_frame(&mut self, frame: &PduFrame) -> LoginProgress<'_> {
        if self.last.is_some() {
            // Nothing may follow the final request before our answer.
            self.last = None;
            return LoginProgress::Close(LoginStatus::InitiatorError);
        }
        let request = match Pdu::parse(&frame.bhs, &frame.ahs, frame.data.clone()) {
            Ok(Pdu::LoginRequest(request)) => request,
            Ok(_) | Err(_) if self.stat_sn.is_some() => {
                // RFC 7143, 4.2.4: once the login has started, any other PDU ends it with this status.
                let response = self.login.refusal(LoginStatus::InvalidDuringLogin);
                self.respond(response);
                return LoginProgress::Close(LoginStatus::InvalidDuringLogin);
            }
            Ok(_) | Err(_) => return LoginProgress::NoLogin,
        };
        if self.stat_sn.is_none() {
            // Our first StatSN is ours to choose; most initiators expect the one they announce.
            self.stat_sn = Some(request.exp_stat_sn);
            self.cmd_sn = request.cmd_sn;
            self.joins = request.tsih != Tsih(0);
        }
        match self.login.handle_request(request) {
            TargetStep::Respond(response) => {
                self.respond(response);
                LoginProgress::Continue
            }
            TargetStep::Established { response, login } => {
                LoginProgress::Established(&self.last.insert((response, login)).1)
            }
            TargetStep::Refused(response) => {
                let status = response.status;
                self.respond(response);
                LoginProgress::Close(status)
            }
        }
    }

    /// Lets the connection in as the leading one of a new session; the final response is in its
    /// output. `None` if no login was established.
    #[must_use]
    pub fn accept(mut self, tsih: Tsih, now: Instant) -> Option<Session> {
        let (mut response, login) = self.last.take()?;
        response.tsih = tsih;
        self.cmd_sn = login.cmd_sn;
        self.respond(response);
        let stat_sn = self.stat_sn?;
        Some(Session::new(self.settings, &login, tsih, stat_sn, self.output, now))
    }

    /// Lets the connection in as one more of `session`, which has authenticated itself by now; the
    /// final response is in its output. One with the same CID is replaced: its socket is to be
    /// closed (RFC 7143, 6.3.4, 6.3.6). What was negotiated for the whole session stays.
    pub fn join(mut self, session: &mut Session, now: Instant) -> Result<Cid, Box<NotJoined>> {
        let Some((response, login)) = self.last.take() else {
            return Err(Box::new(NotJoined { phase: self, status: LoginStatus::InitiatorError }));
        };
        if let Err(status) = session.may_join(&login) {
            self.last = Some((response, login));
            self.refuse(status);
            return Err(Box::new(NotJoined { phase: self, status }));
        }
        let cid = login.cid;
        session.now = now;
        session.replace_connection(cid);
        let stat_sn = self.stat_sn.unwrap_or_default();
        let numbers = Numbers { stat_sn, ..session.window_numbers() };
        let response = LoginResponse { tsih: session.tsih(), numbers, ..response };
        self.output.push(Pdu::LoginResponse(response), Digests::default());
        session.add_connection(&login, stat_sn.next(), self.output, now);
        // Functions may have ended with the connection that was replaced.
        session.check_fences();
        session.resume_transfers();
        Ok(cid)
    }

    /// Refuses a login that was established as far as names go. Write the output and close.
    pub fn refuse(&mut self, status: LoginStatus) {
        if self.last.take().is_some() {
            let response = self.login.refusal(status);
            self.respond(response);
        }
    }

    fn respond(&mut self, mut response: LoginResponse) {
        response.numbers = self.next_numbers();
        self.output.push(Pdu::LoginResponse(response), Digests::default());
    }

    /// Login requests are immediate: they leave the window as it will be in full feature phase.
    fn next_numbers(&mut self) -> Numbers {
        let stat_sn = self.stat_sn.unwrap_or_default();
        self.stat_sn = self.stat_sn.map(Serial::next);
        let width = self.settings.window_commands();
        if self.joins {
            // The window of that session is not known here: numbers that it has left behind change
            // nothing at the initiator (RFC 7143, 4.2.2.1).
            let past = self.cmd_sn.add(width.wrapping_neg());
            return Numbers { stat_sn, exp_cmd_sn: past, max_cmd_sn: past.add(u32::MAX) };
        }
        let max_cmd_sn = self.cmd_sn.add(width - 1);
        Numbers { stat_sn, exp_cmd_sn: self.cmd_sn, max_cmd_sn }
    }
}

impl Session {
    /// May a connection with this login be added?
    fn may_join(&self, login: &EstablishedLogin) -> Result<(), LoginStatus> {
        let is_meant = !self.ended
            && login.tsih == self.tsih()
            && login.isid == self.isid()
            && login.initiator_name == self.initiator_name()
            && login.target_name.as_deref() == self.target_name();
        if !is_meant || self.is_over() {
            return Err(LoginStatus::SessionDoesNotExist);
        }
        let others = self
            .connections()
            .filter(|connection| !connection.is_closing() && connection.cid() != login.cid);
        if others.count() >= usize::from(self.parameters().max_connections) {
            return Err(LoginStatus::TooManyConnections);
        }
        Ok(())
    }
}
