//! The protocol state of a session, and the sockets of its connections.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use iscsi::{
    Cid, Tsih,
    keys::Compression,
    login::EstablishedLogin,
    session::initiator::{
        self, CommandFailure, CommandRequest, DataPhase, InitiatorCommandOutcome,
        InitiatorCommandWindow, InitiatorEvent, InitiatorSession, JoinedConnection,
    },
};
use scsi::{Cdb, Lun};
use tokio::time::sleep_until;
use transport::SessionCongestion;

use crate::{
    CommandError, Error, Settings,
    clock::now,
    connection_io::{ConnectionTraffic, InitiatorConnectionIo},
    login::{LoggedIn, LoginPurpose, log_in},
};

/// A session in full feature phase with its connections. The owner runs the session in a loop: it calls
/// [`SessionIo::pump`], waits for [`SessionIo::readiness`] or [`SessionIo::deadline`], and then calls
/// [`SessionIo::exchange`] or [`SessionIo::handle_timeout`]. [`SessionIo::poll_event`] returns the events.
pub(crate) struct SessionIo {
    pub(crate) session: InitiatorSession,
    sockets: Vec<InitiatorConnectionIo>,
    tsih: Tsih,
    /// The address of the portal to which the session is logged in, after redirects.
    pub(crate) portal: String,
    /// The tag of the target's portal group; `None` if the target has not reported it.
    pub(crate) tpgt: Option<u16>,
    /// The congestion state that all connections of the session share.
    pub(crate) congestion: Arc<SessionCongestion>,
    /// The reason why a connection was lost, for the last one that was lost. It is more precise than the reason that
    /// the state machine reports.
    reason: Option<Error>,
    /// The bytes that ended connections have carried.
    gone: ConnectionTraffic,
    /// The number of connections that have failed. Connections that the target has ended in an orderly way do not
    /// count.
    pub(crate) lost: u64,
    /// The most bytes that each connection may have in the kernel's send queue without having sent
    /// them.
    unsent: u32,
    /// The time between two checks for progress of a connection whose ping is not answered.
    look_every: Duration,
}

/// The number of progress checks in the shortest time after which a connection may be declared dead. Progress is known
/// only to within one check, so a connection may be declared dead too early by at most a sixteenth of that time.
const LOOKS: u32 = 16;

/// The most bytes of a session that wait in the kernel's send queues, shared by its connections. With this limit, each
/// command is assigned to a connection as late as possible, so that no connection is idle while another one has seconds
/// of data queued. Over loopback (transfers of some megabytes at 23 Gbit/s), a limit of 128 KiB for a single connection
/// cost 14 % of the throughput, and half a megabyte cost 2 %.
const UNSENT_BYTES: u32 = 512 << 10;

impl SessionIo {
    /// Connects and logs in, within the time-outs of the settings.
    pub(crate) async fn open(settings: &Settings, discovery: bool) -> Result<Self, Error> {
        let purpose = if discovery { LoginPurpose::Discovery } else { LoginPurpose::Session };
        let LoggedIn { socket, established, portal } = log_in(settings, purpose).await?;
        let first = joined(&established);
        let window = InitiatorCommandWindow::new(established.cmd_sn, established.max_cmd_sn);
        let (depth, timing) = (settings.queue_depth, settings.timing);
        let parameters = established.parameters;
        let connections = settings.offer().max_connections.min(parameters.max_connections);
        let unsent = UNSENT_BYTES / u32::from(connections.max(1));
        let mut session = InitiatorSession::new(parameters, window, depth, timing, first, now());
        session.set_spread(settings.spread);
        let congestion = Arc::new(settings.congestion.session());
        socket.take_into(&congestion);
        socket.limit_unsent(unsent);
        let (sockets, tsih, tpgt) = (vec![socket], established.tsih, established.tpgt);
        let shortest = timing.stall_time_out.min(timing.ping_time_out);
        Ok(Self {
            session,
            sockets,
            tsih,
            portal,
            tpgt,
            congestion,
            reason: None,
            gone: ConnectionTraffic::default(),
            lost: 0,
            unsent,
            look_every: (shortest / LOOKS).max(Duration::from_millis(1)),
        })
    }

    /// Returns the parameters with which another connection logs in to this session.
    pub(crate) fn next_join(&self) -> LoginPurpose {
        let (cid, cmd_sn) = (self.session.next_cid(), self.session.cmd_sn());
        LoginPurpose::Join { portal: self.portal.clone(), tsih: self.tsih, cid, cmd_sn }
    }

    /// Adds a connection to this session. The connection has completed its login.
    pub(crate) fn join(&mut self, logged_in: LoggedIn) {
        self.session.join(joined(&logged_in.established), now());
        logged_in.socket.take_into(&self.congestion);
        logged_in.socket.limit_unsent(self.unsent);
        self.sockets.push(logged_in.socket);
    }

    pub(crate) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Returns the CID of each connection, and the number of bytes that it has transferred.
    pub(crate) fn traffic(&self) -> impl Iterator<Item = (Cid, ConnectionTraffic)> {
        self.sockets.iter().map(|socket| (socket.cid, socket.traffic()))
    }

    pub(crate) fn passed(&self) -> ConnectionTraffic {
        let mut passed = self.gone;
        self.traffic().for_each(|(_, traffic)| passed += traffic);
        passed
    }

    /// Returns the compression method of the oldest connection.
    pub(crate) fn compression(&self) -> Option<Compression> {
        self.sockets.first()?.compression()
    }

    /// Returns the reason as an error if the session is over.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        match self.session.error() {
            None => Ok(()),
            Some(initiator::InitiatorSessionError::Closed) => {
                Err(self.reason.take().unwrap_or(Error::Closed))
            }
            Some(error) => Err(error.clone().into()),
        }
    }

    /// Lets the state machine make PDUs, and writes as much of them as the sockets accept.
    pub(crate) fn pump(&mut self) {
        loop {
            self.session.transmit();
            // Repeat while a socket has accepted all its output: the state machine may then produce more PDUs.
            let mut again = false;
            let mut broken = None;
            for socket in &mut self.sockets {
                let Some(output) = self.session.output(socket.cid) else { continue };
                if output.is_empty() {
                    continue;
                }
                match socket.send(output) {
                    Ok(all) => again |= all,
                    Err(error) => broken = Some((socket.cid, error)),
                }
                let written = output.written();
                socket.note_written(self.session.asked(socket.cid), written);
            }
            if let Some((cid, error)) = broken {
                self.fail(cid, error);
            } else if !again {
                return;
            }
        }
    }

    /// Waits until bytes arrive on a socket and processes their PDUs, or until a socket with waiting output is
    /// writable.
    pub(crate) async fn exchange(&mut self) {
        poll_fn(
            |context| if self.poll_exchange(context) { Poll::Ready(()) } else { Poll::Pending },
        )
        .await;
    }

    fn poll_exchange(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_news = false;
        let mut failed = Vec::new();
        for socket in &mut self.sockets {
            match socket.poll_exchange(&mut self.session, context) {
                Ok(news) => has_news |= news,
                Err(error) => failed.push((socket.cid, error)),
            }
        }
        has_news |= !failed.is_empty();
        failed.into_iter().for_each(|(cid, error)| self.fail(cid, error));
        has_news
    }

    /// Returns the time at which [`SessionIo::handle_timeout`] has to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let is_asked = |socket: &&InitiatorConnectionIo| self.session.asked(socket.cid).is_some();
        let looks =
            self.sockets.iter().filter(is_asked).map(|socket| socket.next_look(self.look_every));
        self.session.poll_timeout().map(|deadline| looks.fold(deadline, Instant::min))
    }

    /// Checks if bytes got through on connections with unanswered pings, and lets the state machine handle time-outs.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        for socket in &mut self.sockets {
            let Some(asked) = self.session.asked(socket.cid) else { continue };
            if let Some(at) = socket.look(asked, now, self.look_every) {
                self.session.note_carried(socket.cid, at);
            }
        }
        self.session.handle_timeout(now);
    }

    /// Returns the next event. If the event is the end of a connection, removes the socket of the connection first.
    pub(crate) fn poll_event(&mut self) -> Option<InitiatorEvent> {
        let event = self.session.poll_event()?;
        if let InitiatorEvent::Closed { cid, error } = &event {
            self.fail(*cid, error.clone().into());
        }
        Some(event)
    }

    /// Removes a failed connection from the session, counts the failure, and keeps its error.
    fn fail(&mut self, cid: Cid, error: Error) {
        let Some(at) = self.sockets.iter().position(|socket| socket.cid == cid) else { return };
        let socket = self.sockets.remove(at);
        self.gone += socket.traffic();
        self.lost += u64::from(error.time2wait().is_none());
        let told = match &error {
            Error::Dropped(error) => error.clone(),
            _ => initiator::InitiatorSessionError::Closed,
        };
        tracing::debug!(cid = cid.0, %error, "a connection ended");
        self.reason = Some(error);
        self.session.close(cid, told, now());
    }

    /// Performs one command while no other is in progress. The caller must check its status.
    pub(crate) async fn execute(
        &mut self,
        settings: &Settings,
        cdb: Cdb,
        transfer: DataPhase,
    ) -> Result<InitiatorCommandOutcome, Error> {
        let lun = Lun::from_number(settings.lun);
        let lun = lun.ok_or_else(|| Error::unit("the LUN is above 16383"))?;
        let time_out = settings.command_time_out;
        let request = CommandRequest { tag: 0, lun, cdb, transfer, time_out };
        let submitted = self.session.submit(request, now());
        submitted.map_err(|_| Error::unit("the queue depth is zero"))?;
        loop {
            match self.turn().await? {
                InitiatorEvent::Completed { result: Ok(outcome), .. } => return Ok(outcome),
                InitiatorEvent::Completed { result: Err(CommandFailure::TimedOut), .. } => {
                    return Err(Error::TimedOut("a command"));
                }
                InitiatorEvent::Completed { result: Err(failure), .. } => {
                    return Err(Error::unit(CommandError::from(failure).to_string()));
                }
                InitiatorEvent::Returned(_) => return Err(Error::Closed),
                _ => {}
            }
        }
    }

    /// Exchanges text requests and responses while no command is in progress.
    pub(crate) async fn text(&mut self, text: Bytes) -> Result<Bytes, Error> {
        if !self.session.text(text, now()) {
            let wrong = initiator::InitiatorSessionError::Protocol(
                "a request for negotiation while commands are in progress",
            );
            return Err(wrong.into());
        }
        loop {
            if let InitiatorEvent::Text(answer) = self.turn().await? {
                return Ok(answer);
            }
        }
    }

    /// Logs out while no command is in progress. The time-outs of the state machine limit the wait. The target's answer
    /// is ignored.
    pub(crate) async fn log_out(mut self) {
        self.session.log_out(now());
        while let Ok(event) = self.turn().await {
            if matches!(event, InitiatorEvent::LoggedOut { .. }) {
                break;
            }
        }
    }

    /// Runs the session until there is an event. Returns an error if the session has no connection.
    async fn turn(&mut self) -> Result<InitiatorEvent, Error> {
        loop {
            // Check the time in every iteration: otherwise input that arrives all the time could delay time-outs.
            if self.deadline().is_some_and(|deadline| deadline <= now()) {
                self.handle_timeout(now());
            }
            if let Some(event) = self.poll_event() {
                return Ok(event);
            }
            self.check()?;
            if self.sockets.is_empty() {
                return Err(self.reason.take().unwrap_or(Error::Closed));
            }
            self.pump();
            let Some(deadline) = self.deadline() else { continue };
            tokio::select! {
                biased;
                () = self.exchange() => {}
                () = sleep_until(deadline.into()) => {}
            }
        }
    }
}

fn joined(login: &EstablishedLogin) -> JoinedConnection {
    JoinedConnection {
        cid: login.cid,
        digests: login.parameters.digests,
        max_send_data_segment_length: login.parameters.max_send_data_segment_length,
        exp_stat_sn: login.exp_stat_sn,
        exp_cmd_sn: login.exp_cmd_sn,
        max_cmd_sn: login.max_cmd_sn,
    }
}
