//! A connection before its login is complete. It accepts only login PDUs, uses little memory, and has a deadline.

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
    /// The next StatSN; `None` until the first request has arrived.
    stat_sn: Option<Serial>,
    cmd_sn: Serial,
    /// True if the connection joins an existing session: its first login request has a TSIH other than 0.
    joins: bool,
    deadline: Instant,
    output: PduOutput,
    last: Option<(LoginResponse, Box<EstablishedLogin>)>,
}

#[derive(Debug)]
pub enum LoginProgress<'a> {
    /// The login continues. Write the output to the socket, if there is any.
    Continue,
    /// Negotiation and authentication have succeeded: call `accept`, `join` or `refuse`.
    Established(&'a EstablishedLogin),
    /// The login has failed: write the output and close the connection.
    Close(LoginStatus),
    /// The first PDU is not a login request: close the connection without an answer (RFC 7143,
    /// 4.2.4).
    NoLogin,
}

/// A login that the session has refused after the negotiation. Write the output of `phase` and close the connection.
pub struct NotJoined {
    /// The login phase, whose output contains the refusal.
    pub phase: LoginPhase,
    pub status: LoginStatus,
}

impl LoginPhase {
    /// Makes the login phase of a newly accepted connection.
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

    /// Sets random bytes for CHAP: see [`TargetLogin::with_challenge`].
    #[must_use]
    pub fn with_challenge(mut self, challenge: Challenge) -> Self {
        self.login = self.login.with_challenge(challenge);
        self
    }

    /// Returns the names that the initiator claims.
    #[must_use]
    pub fn claims(&self) -> ClaimedIdentity {
        self.login.claims()
    }

    /// Returns the reason why the authentication failed, for our own log messages.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.login.reason()
    }

    /// Returns the login PDUs that are still to be sent.
    #[must_use]
    pub fn output(&self) -> &PduOutput {
        &self.output
    }

    /// Returns the output, from which the driver removes the bytes that it has written to the socket.
    pub fn output_mut(&mut self) -> &mut PduOutput {
        &mut self.output
    }

    /// Returns the time at which the driver has to call `handle_timeout`.
    #[must_use]
    pub fn poll_timeout(&self) -> Instant {
        self.deadline
    }

    /// Returns an error if the deadline of the login has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), TargetSessionError> {
        if now < self.deadline { Ok(()) } else { Err(TargetSessionError::LoginTimeout) }
    }

    /// Processes a received PDU. No further PDU is accepted after `Established`, `Close` and
    /// `NoLogin`.
    pub fn handle_frame(&mut self, frame: &PduFrame) -> LoginProgress<'_> {
        if self.last.is_some() {
            // Refuse the login: after its final request, the initiator must send nothing before our response.
            self.last = None;
            return LoginProgress::Close(LoginStatus::InitiatorError);
        }
        let request = match Pdu::parse(&frame.bhs, &frame.ahs, frame.data.clone()) {
            Ok(Pdu::LoginRequest(request)) => request,
            Ok(_) | Err(_) if self.stat_sn.is_some() => {
                // The login has started, so any other PDU ends it with this status (RFC 7143, 4.2.4).
                let response = self.login.refusal(LoginStatus::InvalidDuringLogin);
                self.respond(response);
                return LoginProgress::Close(LoginStatus::InvalidDuringLogin);
            }
            Ok(_) | Err(_) => return LoginProgress::NoLogin,
        };
        if self.stat_sn.is_none() {
            // The target may choose its first StatSN. Use the ExpStatSN of the first request, since most initiators
            // expect this number.
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

    /// Makes a new session with this connection as the leading one. The final response is in its output. Returns `None`
    /// unless `handle_frame` has returned `Established`.
    #[must_use]
    pub fn accept(mut self, tsih: Tsih, now: Instant) -> Option<Session> {
        let (mut response, login) = self.last.take()?;
        response.tsih = tsih;
        self.cmd_sn = login.cmd_sn;
        self.respond(response);
        let stat_sn = self.stat_sn?;
        Some(Session::new(self.settings, &login, tsih, stat_sn, self.output, now))
    }

    /// Adds the connection to `session` after the initiator has authenticated. The final response is in its output. If
    /// `session` has a connection with the same CID, the new one replaces it, and the driver must close the old socket
    /// (RFC 7143, 6.3.4, 6.3.6). The parameters that were negotiated for the session do not change.
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
        // Some task management functions waited for the replaced connection.
        session.check_fences();
        session.resume_transfers();
        Ok(cid)
    }

    /// Refuses a login although negotiation and authentication have succeeded. Write the output and close the
    /// connection.
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

    /// Returns the sequence numbers of a login response. Login requests are immediate and consume no CmdSN, so the
    /// window is the same as at the start of full feature phase.
    fn next_numbers(&mut self) -> Numbers {
        let stat_sn = self.stat_sn.unwrap_or_default();
        self.stat_sn = self.stat_sn.map(Serial::next);
        let width = self.settings.window_commands();
        if self.joins {
            // This connection joins a session whose window is not known here. Send numbers below the window: the
            // initiator ignores them (RFC 7143, 4.2.2.1).
            let past = self.cmd_sn.add(width.wrapping_neg());
            return Numbers { stat_sn, exp_cmd_sn: past, max_cmd_sn: past.add(u32::MAX) };
        }
        let max_cmd_sn = self.cmd_sn.add(width - 1);
        Numbers { stat_sn, exp_cmd_sn: self.cmd_sn, max_cmd_sn }
    }
}

impl Session {
    /// Checks that a connection with this login may join the session.
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
