//! The driver of one session in full feature phase: the task that owns its sockets, its protocol state and its
//! commands in progress.
//!
//! The driver reads all available input, processes every complete PDU inline, polls each command once (and
//! keeps those that do not complete), and writes the responses of a batch together. Connections may come and
//! go. A command may outlive its connection if the protocol allows it. `tasks.rs` performs the commands.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use iscsi::{
    Cid,
    session::target::{Connection, Session},
};
use tokio::{runtime::Handle, sync::mpsc, time::Sleep};
use tracing::{debug, info, warn};
use transport::{CongestionControl, SessionCongestion};
use unit::Nexus;

use crate::{
    busy_polling::BusyPolling,
    command_times::StopWatch,
    connection_io::{Socket, TargetConnectionIo},
    deferred_commands::Deferred,
    end_reason::ConnectionEndReason,
    execution::Executions,
    nexus_handle::NexusHandle,
    portal::PortalGroup,
    server_context::ServerContext,
    session_registry::{DriverMessage, JoiningConnection, RefusedJoin, SessionRegistration},
    statistics::TargetConnectionStats,
    write_data_pool::Lease,
};

/// Runs a session until it ends. `socket` is the connection that has created the session.
pub(crate) async fn run(
    server: &ServerContext,
    socket: Socket,
    mut session: Session,
    seat: SessionRegistration,
) -> ConnectionEndReason {
    if session.is_discovery() {
        // Do not let requests of a discovery session wait: none of its requests needs that, and the initiator may not
        // have authenticated.
        session.limit_waiting(0);
    }
    let target = session.target_name().filter(|_| !session.is_discovery());
    let device = target.and_then(|name| server.names.find(name));
    let port = initiator_port(&session);
    let target_port = seat.tpgt.unwrap_or(PortalGroup::default().tag);
    let nexus = Nexus { number: seat.number, initiator_port: port, target_port };
    let nexus_handle = device.map(|device| NexusHandle::open(device, nexus));
    if let Some(NexusHandle { device, .. }) = &nexus_handle {
        session.use_descriptor_sense(device.descriptor_sense_luns());
    }
    let congestion = match session.is_discovery() {
        true => CongestionControl::default().session(),
        false => server.settings.congestion.session(),
    };
    let congestion = Arc::new(congestion);
    seat.published.lock().congestion = Some(Arc::clone(&congestion));
    let lines =
        session.connections().next().map(|leading| TargetConnectionIo::new(socket, leading));
    lines.iter().for_each(|line| line.take_into(&congestion));
    let threads = Handle::current().metrics().num_workers();
    let polling = BusyPolling::new(server.settings.busy_poll, &server.pollers, threads);
    let watch = StopWatch::new(Arc::clone(&seat.times));
    let mut driver = TargetSessionDriver {
        server,
        session,
        executions: Executions::new(watch),
        deferred: Deferred::default(),
        nexus_handle,
        looks: Vec::new(),
        seat,
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        unsent: 0,
        ending: SessionEnding { closing_all: false, last: ConnectionEndReason::NotRecovered },
        congestion,
        lease: server.pool.lease(),
        polling,
        last_request: Instant::now(),
        lines: lines.into_iter().collect(),
    };
    let end = poll_fn(|context| driver.poll(context)).await;
    driver.publish();
    end
}

pub(crate) struct TargetSessionDriver<'a> {
    pub(crate) server: &'a ServerContext,
    pub(crate) session: Session,
    pub(crate) executions: Executions,
    pub(crate) deferred: Deferred,
    /// `None` in a discovery session, and after a logout. Dropped after the executions: a unit must not be called for
    /// a nexus after `nexus_closed`.
    pub(crate) nexus_handle: Option<NexusHandle>,
    /// Channels to logins that wait until this driver has checked which of its connections are closed. Declared after
    /// the nexus and so dropped after it: if this session has ended, the logins continue once its nexus is closed.
    looks: Vec<mpsc::Sender<()>>,
    timer: Pin<Box<Sleep>>,
    /// Number of commands answered since the last write.
    pub(crate) unsent: usize,
    pub(crate) ending: SessionEnding,
    /// The congestion state that all connections of the session share.
    congestion: Arc<SessionCongestion>,
    /// Memory for waiting writes beyond the reserved share.
    pub(crate) lease: Lease,
    polling: BusyPolling,
    /// The time of the last text request of a discovery session, or of its start.
    pub(crate) last_request: Instant,
    /// The open connections of `session`. Empty while the session waits for its initiator to reassign its tasks.
    /// Declared after the commands and so dropped after them: a caller that waits for the end of the connections also
    /// waits for the end of the commands.
    pub(crate) lines: Vec<TargetConnectionIo>,
    /// The last field, so it is dropped last. A session that replaces this one waits for this drop, and must then find
    /// that the permits of this session's connections have been given back.
    pub(crate) seat: SessionRegistration,
}

/// Whether and why the session is about to end.
pub(crate) struct SessionEnding {
    /// True after a TARGET COLD RESET by this session, which then ends, too, once the response has been written.
    pub(crate) closing_all: bool,
    /// The reason for which the last connection ended.
    last: ConnectionEndReason,
}

/// Period of the timer while no timeout is due.
const IDLE: Duration = Duration::from_secs(1);

/// Maximum number of reads of a socket before the task yields to others: about two microseconds if no input arrives.
const LOOKS: usize = 8;

impl TargetSessionDriver<'_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEndReason> {
        match self.advance(context) {
            Ok(()) => {
                self.give_room_back();
                self.publish();
                Poll::Pending
            }
            Err(end) => {
                // Try to send the queued output, which may tell the initiator why the session ends. Drop the rest that
                // the sockets do not accept now.
                for line in &mut self.lines {
                    if let Some(connection) = self.session.connection_mut(line.cid) {
                        let _ = line.send(connection.output_mut(), context);
                    }
                }
                Poll::Ready(end)
            }
        }
    }

    /// Handles all messages, input, output and completed commands that are ready now. On return,
    /// the task of `context` will be woken when more of them are ready or the timer expires.
    fn advance(&mut self, context: &mut Context<'_>) -> Result<(), ConnectionEndReason> {
        loop {
            self.advance_until_idle(context)?;
            if !self.busy_poll(context)? {
                return Ok(());
            }
        }
    }

    fn advance_until_idle(&mut self, context: &mut Context<'_>) -> Result<(), ConnectionEndReason> {
        loop {
            let mut progress = self.take_orders(context)?;
            progress |= self.take_finished(context)?;
            progress |= self.receive(context)?;
            self.send(context)?;
            progress |= self.run_deferred(context);
            progress |= self.find_room(context);
            progress |= self.close_lines(context)?;
            if !progress && !self.poll_timer(context)? {
                return Ok(());
            }
        }
    }

    fn take_orders(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEndReason> {
        let mut progress = false;
        while let Poll::Ready(Some(order)) = self.seat.orders.poll_recv(context) {
            progress = true;
            match order {
                DriverMessage::Close(why) => return Err(ConnectionEndReason::Ordered(why)),
                DriverMessage::Stop(why) => {
                    let time2wait = self.session.parameters().default_time2wait;
                    self.session.announce_end(time2wait);
                    return Err(ConnectionEndReason::Ordered(why));
                }
                DriverMessage::AskForLogout(seconds) => self.session.ask_for_logout(seconds),
                DriverMessage::Join(joining) => self.join(*joining, context),
                DriverMessage::Clear { lun, done } => {
                    self.session.abort_tasks(lun);
                    self.take_events(context);
                    drop(done);
                }
                DriverMessage::LookAtUnits { done } => {
                    // Before units are removed, answer their commands that have completed.
                    self.take_finished(context)?;
                    self.change_units(context);
                    drop(done);
                }
                DriverMessage::LookAtConnections { done } => {
                    self.looks.push(done);
                    self.look_at_connections(context)?;
                    self.looks.clear();
                    progress = true;
                }
            }
        }
        Ok(progress)
    }

    /// Reads all sockets to find connections that their initiators have closed, since the runtime may not have reported
    /// that yet.
    fn look_at_connections(
        &mut self,
        context: &mut Context<'_>,
    ) -> Result<(), ConnectionEndReason> {
        let mut at = 0;
        while let Some(line) = self.lines.get(at) {
            let cid = line.cid;
            match self.look_at(at, context) {
                Ok(()) => at += 1,
                Err(end) => self.drop_line(cid, end, context)?,
            }
        }
        Ok(())
    }

    fn look_at(&mut self, at: usize, context: &mut Context<'_>) -> Result<(), ConnectionEndReason> {
        for _ in 0..LOOKS {
            if !self.run_frames(at, context)? || !self.lines[at].look()? {
                break;
            }
        }
        Ok(())
    }

    /// Adds a connection that has logged in. The new connection replaces one with the same CID.
    fn join(&mut self, joining: JoiningConnection, context: &mut Context<'_>) {
        let JoiningConnection { socket, phase, reply } = joining;
        match phase.join(&mut self.session, Instant::now()) {
            Ok(cid) => {
                if self.lines.is_empty() {
                    self.seat.end_to_wait();
                }
                self.lines.retain(|line| line.cid != cid);
                if let Some(connection) = self.session.connection(cid) {
                    let (initiator, address) = (self.session.initiator_name(), socket.address);
                    let tsih = self.seat.tsih.0;
                    let cid = cid.0;
                    match self.server.session_report(address.ip()) {
                        Some(unreported) => {
                            info!(%address, %initiator, tsih, cid, unreported, "connection added");
                        }
                        None => debug!(%address, %initiator, tsih, cid, "connection added"),
                    }
                    let line = TargetConnectionIo::new(socket, connection);
                    line.take_into(&self.congestion);
                    self.lines.push(line);
                }
                let _ = reply.send(None); // the login may have timed out
            }
            Err(refused) => {
                let _ = reply.send(Some(RefusedJoin { socket, refused }));
            }
        }
        self.take_events(context);
    }

    /// Processes the received PDUs of each connection, then reads each once. Returns false if there was no input, or
    /// if the initiator has to read responses first.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEndReason> {
        let mut progress = false;
        let mut at = 0;
        while let Some(line) = self.lines.get(at) {
            let cid = line.cid;
            match self.receive_on(at, context) {
                Ok(more) => progress |= more,
                Err(end) => {
                    self.drop_line(cid, end, context)?;
                    progress = true;
                    continue;
                }
            }
            at += 1;
        }
        Ok(progress)
    }

    fn receive_on(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, ConnectionEndReason> {
        Ok(self.run_frames(at, context)?
            && self.lines[at].receive(context)?
            && self.run_frames(at, context)?)
    }

    /// Processes all complete PDUs of a connection. Returns false if PDUs are left because too much output or too
    /// much data waits.
    fn run_frames(
        &mut self,
        at: usize,
        context: &mut Context<'_>,
    ) -> Result<bool, ConnectionEndReason> {
        let cid = self.lines[at].cid;
        let mut now = None;
        let line = &mut self.lines[at];
        if line.blocked_since.is_some() {
            line.is_held_up = true;
        } else if line.is_held_up {
            line.is_held_up = false;
            self.session.excuse_silence(cid, Instant::now());
        }
        loop {
            if self.is_full() {
                self.lines[at].is_unread = true;
                return Ok(false);
            }
            let limit = self.server.settings.output_bytes;
            let queued = self.session.connection(cid).map_or(0, |c| c.output().len());
            if queued > limit {
                self.send_on(at, context)?;
                // Read commands even if this connection must not receive more responses, and let them wait in
                // `deferred`. CmdSN order is kept over all connections of the session, so a command that stays unread
                // would block later commands on the others. The limit below keeps other PDUs from piling up.
                let is_shared = self.lines.len() > 1;
                let line = &mut self.lines[at];
                if line.blocked_since.is_some() {
                    let held_at = *line.held_at.get_or_insert(queued);
                    if !is_shared || queued > held_at.saturating_add(limit) {
                        line.is_unread = true;
                        return Ok(false);
                    }
                }
            } else {
                self.lines[at].held_at = None;
            }
            let line = &mut self.lines[at];
            if line.is_unread {
                line.is_unread = false;
                self.session.excuse_unread(cid, Instant::now());
            }
            let frame = match line.decoder.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(true),
                Err(error) => return Err(self.session.handle_codec_error(cid, error).into()),
            };
            let now = *now.get_or_insert_with(Instant::now);
            line.last_input = now;
            self.make_room(frame.data.len());
            self.session.handle_frame(cid, frame, now)?;
            self.take_events(context);
            if self.is_batch() {
                self.send_what_goes(context);
            }
        }
    }

    /// Writes as much output as the sockets accept. A connection whose socket fails is dropped.
    fn send(&mut self, context: &mut Context<'_>) -> Result<(), ConnectionEndReason> {
        self.unsent = 0;
        let mut at = 0;
        while let Some(line) = self.lines.get(at) {
            let cid = line.cid;
            match self.send_on(at, context) {
                Ok(()) => at += 1,
                Err(end) => self.drop_line(cid, end, context)?,
            }
        }
        Ok(())
    }

    /// Drops connections that have logged out, and ends the session if no connection is left.
    fn close_lines(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEndReason> {
        if self.ending.closing_all && self.lines.iter().all(|line| line.blocked_since.is_none()) {
            return Err(ConnectionEndReason::Ordered("target cold reset"));
        }
        let is_done = |c: &Connection| c.is_closing() && c.output().is_empty();
        let mut progress = false;
        loop {
            let done = self.session.connections().find(|c| is_done(c)).map(Connection::cid);
            let Some(done) = done else { return Ok(progress) };
            self.drop_line(done, ConnectionEndReason::LoggedOut, context)?;
            progress = true;
        }
    }

    /// Ends the connection `cid`, and also the session if the reason or the protocol requires that.
    fn drop_line(
        &mut self,
        cid: Cid,
        end: ConnectionEndReason,
        context: &mut Context<'_>,
    ) -> Result<(), ConnectionEndReason> {
        if end.ends_session() {
            return Err(end);
        }
        let line = self.lines.iter().position(|line| line.cid == cid);
        let address = line.map(|at| {
            // Try to send the queued output, which may tell the initiator why the connection ends. Drop the rest that
            // the socket does not accept now.
            let _ = self.send_on(at, context);
            self.lines.remove(at).address
        });
        self.session.drop_connection(cid, Instant::now());
        self.take_events(context);
        if self.session.is_over() {
            return Err(end);
        }
        if line.is_some() && self.lines.is_empty() {
            self.seat.begin_to_wait(self.server.settings.waiting_sessions());
        }
        let (initiator, tsih, cid) = (self.session.initiator_name(), self.seat.tsih.0, cid.0);
        let left = self.lines.len();
        // A connection that is not in `lines` any more was replaced by a new one. It has no address here, and its end
        // is always reported.
        let report = address.map_or(Some(None), |it| self.server.session_report(it.ip()));
        match report {
            Some(unreported) if end.is_expected() => {
                info!(?address, %initiator, tsih, cid, left, %end, unreported, "connection closed");
            }
            Some(unreported) => {
                warn!(?address, %initiator, tsih, cid, left, %end, unreported, "connection dropped");
            }
            None => debug!(?address, %initiator, tsih, cid, left, %end, "connection ended"),
        }
        self.ending.last = end;
        Ok(())
    }

    /// If the timer has expired, handles all time-outs that are due: of slow readers, of discovery
    /// sessions and of the session. Returns true if the timer had expired.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEndReason> {
        let due = self.due();
        // Set the timer only if it would expire too late. A timer that expires too early is reset then: this is cheaper
        // than to reset it for every PDU.
        let set = self.timer.deadline().into_std();
        if due < set {
            self.timer.as_mut().reset(due.into());
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        let slow = self.server.settings.slow_reader;
        let is_slow = |line: &&TargetConnectionIo| {
            line.blocked_since.is_some_and(|since| now >= since + slow)
        };
        while let Some(cid) = self.lines.iter().find(is_slow).map(|line| line.cid) {
            self.drop_line(cid, ConnectionEndReason::SlowReader, context)?;
        }
        if self.idle_at().is_some_and(|idle| idle <= now) {
            return Err(ConnectionEndReason::Idle);
        }
        // Do not count silence against an initiator whose input the driver does not read, or that must first read
        // output which was queued before the target's ping. The limit for slow readers is checked above.
        for line in &self.lines {
            if line.is_unread {
                self.session.excuse_unread(line.cid, now);
            } else if line.blocked_since.is_some() {
                self.session.excuse_silence(line.cid, now);
            }
        }
        self.session.note_contention(self.server.pool.is_contended(now), now);
        for (cid, error) in self.session.handle_timeout(now) {
            self.drop_line(cid, error.into(), context)?;
        }
        self.take_events(context);
        if self.session.is_over() {
            return Err(std::mem::replace(
                &mut self.ending.last,
                ConnectionEndReason::NotRecovered,
            ));
        }
        self.lines.iter_mut().for_each(|line| line.rest(now));
        let due = self.due();
        self.timer.as_mut().reset(due.into());
        Ok(true)
    }

    /// Returns the time at which the timer has to expire next.
    fn due(&self) -> Instant {
        let slow = self.server.settings.slow_reader;
        let blocked = self.lines.iter().filter_map(|line| line.blocked_since);
        let due = blocked.map(|since| since + slow).chain(self.session.poll_timeout());
        let due = due.chain(self.idle_at()).min();
        due.unwrap_or_else(|| Instant::now() + IDLE)
    }

    /// Returns the time at which a discovery session ends unless it sends a text request before. An answer to a ping of
    /// the target does not extend this time.
    fn idle_at(&self) -> Option<Instant> {
        let idle = self.server.settings.discovery_idle;
        self.session.is_discovery().then(|| self.last_request + idle)
    }

    /// Reads the sockets of active connections directly, without waiting for the runtime to report input. Returns true
    /// if input was read. Otherwise, while the session polls, wakes this task again at once; other tasks run in
    /// between.
    fn busy_poll(&mut self, context: &mut Context<'_>) -> Result<bool, ConnectionEndReason> {
        let limit = self.polling.limit();
        if limit.is_zero() {
            return Ok(false);
        }
        let now = Instant::now();
        let is_active = |line: &TargetConnectionIo| {
            line.blocked_since.is_none() && now.saturating_duration_since(line.last_input) < limit
        };
        if self.is_full() || !self.lines.iter().any(is_active) || !self.polling.goes_on(now) {
            self.polling.stop();
            return Ok(false);
        }
        for _ in 0..LOOKS {
            let mut at = 0;
            while let Some(line) = self.lines.get_mut(at) {
                let cid = line.cid;
                if line.blocked_since.is_some() {
                    at += 1;
                    continue;
                }
                match line.look() {
                    Ok(true) => return Ok(true),
                    Ok(false) => at += 1,
                    Err(end) => self.drop_line(cid, end, context)?,
                }
            }
            std::hint::spin_loop();
        }
        context.waker().wake_by_ref();
        Ok(false)
    }

    fn publish(&self) {
        let mut published = self.seat.published.lock();
        published.counters = self.session.counters();
        published.connections.resize_with(self.lines.len(), Default::default);
        for (published, line) in published.connections.iter_mut().zip(&self.lines) {
            let counters = self.session.connection(line.cid).map(Connection::counters);
            *published = TargetConnectionStats {
                cid: line.cid.0,
                address: Some(line.address),
                local: Some(line.local),
                counters: counters.unwrap_or_default(),
                link_bytes: line.link_bytes(),
            };
        }
    }
}

/// Returns the name of the initiator port (RFC 7143, 3.4.3).
fn initiator_port(session: &Session) -> Arc<str> {
    let isid: String = session.isid().0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{},i,0x{isid}", session.initiator_name()).into()
}
