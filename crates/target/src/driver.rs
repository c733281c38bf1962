//! One connection in full feature phase: the task that owns its socket and its machine.
//!
//! Reads all that is there, runs every complete PDU inline, polls each command once (what is not
//! done then is held), and writes the answers of a batch at once.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use iscsi::{
    codec::Decoder,
    pdu::{TaskFunction, TaskFunctionResult},
    session::target::{
        Admission, Admitted, Command, Connection, Error, Event, ManagementRequest, Outcome,
        SendTargets, Session,
    },
};
use tokio::{net::TcpStream, sync::mpsc, time::Sleep};
use transport::{Received, Sent, poll_receive, poll_send, receive_now};
use unit::{Completion, Neighbours, Nexus, Task, TaskAttribute, TaskManagement};

use crate::{
    device,
    execution::{Execution, Executions, Finished},
    names::Device,
    registry::{Order, Seat},
    surroundings::Surroundings,
};

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    #[error("logged out")]
    LoggedOut,
    #[error("closed by the initiator")]
    ClosedByPeer,
    #[error("{0}")]
    Ordered(&'static str),
    #[error(transparent)]
    Protocol(#[from] Error),
    #[error("the initiator reads nothing of what was sent")]
    SlowReader,
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Runs a connection until it ends. `decoder` may hold bytes that came with the login.
pub(crate) async fn run(
    surroundings: &Surroundings,
    stream: TcpStream,
    decoder: Decoder,
    admitted: Admitted,
    seat: Seat,
) -> End {
    let Admitted { session, connection } = admitted;
    let target = session.target_name().filter(|_| !session.is_discovery());
    let device = target.and_then(|name| surroundings.names.find(name));
    let port = initiator_port(&session);
    // A portal that was closed meanwhile belonged to a group with the usual tag, most likely.
    let portal = stream.local_addr().ok().and_then(|local| surroundings.portals.entered(local));
    let target_port = portal.map_or(1, |portal| portal.group.tag);
    let nexus = Nexus { number: seat.number, initiator_port: port, target_port };
    // Dropped after the driver with all its executions: a unit never hears of a nexus again
    // after `nexus_closed`.
    let _presence = device.as_ref().map(|device| Presence::open(device, nexus.clone()));
    let mut driver = Driver {
        surroundings,
        device: device.as_deref(),
        nexus,
        stream,
        decoder,
        session,
        connection,
        executions: Executions::default(),
        seat,
        timer: Box::pin(tokio::time::sleep(Duration::ZERO)),
        blocked_since: None,
        last_input: Instant::now(),
        unsent: 0,
        closing_all: false,
    };
    driver.configure();
    let end = poll_fn(|context| driver.poll(context)).await;
    driver.publish();
    end
}

/// A nexus as long as it lasts.
struct Presence<'a> {
    device: &'a Device,
    nexus: Nexus,
}

impl<'a> Presence<'a> {
    fn open(device: &'a Arc<Device>, nexus: Nexus) -> Self {
        for unit in device.units() {
            unit.nexus_opened(&nexus);
            // For copies: what this session could log in to, and nothing else of the server.
            unit.nexus_reaches(&nexus, Arc::clone(device) as Arc<dyn Neighbours>);
        }
        Self { device, nexus }
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        self.device.units().for_each(|unit| unit.nexus_closed(&self.nexus));
    }
}

struct Driver<'a> {
    surroundings: &'a Surroundings,
    /// `None` in a discovery session.
    device: Option<&'a Device>,
    nexus: Nexus,
    stream: TcpStream,
    decoder: Decoder,
    session: Session,
    connection: Connection,
    executions: Executions<'a>,
    seat: Seat,
    timer: Pin<Box<Sleep>>,
    /// The socket takes no output since then.
    blocked_since: Option<Instant>,
    last_input: Instant,
    /// Commands answered since the last write.
    unsent: u32,
    /// TARGET COLD RESET: this session, too, ends when the answer is written.
    closing_all: bool,
}

/// What a full feature phase connection keeps for small PDUs: measured best for 4 KiB writes, as
/// both ends work at once; 256 KiB make them take turns.
const RECEIVE_BUFFER: usize = 64 * 1024;

/// A connection without input for so long gives its buffers back when its timer runs out next.
const REST: Duration = Duration::from_secs(10);

/// How long the times of a connection are put off while its socket is not read.
const FULL_FOR: Duration = Duration::from_secs(1);

/// Looks at the socket before a busy-polling task gives way to others: about two microseconds.
const LOOKS: usize = 8;

impl Driver<'_> {
    fn configure(&mut self) {
        let limit = self.connection.max_recv_data_segment_length();
        self.decoder.configure(RECEIVE_BUFFER, limit, self.connection.digests());
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        match self.advance(context) {
            Ok(()) => {
                self.publish();
                Poll::Pending
            }
            Err(end) => {
                // What is queued may say why; what the socket does not take now is lost.
                let _ = poll_send(&mut self.stream, self.connection.output_mut(), context);
                Poll::Ready(end)
            }
        }
    }

    /// Everything that can be done now. When it returns, the task will be woken.
    fn advance(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        loop {
            self.advance_until_idle(context)?;
            if !self.busy_poll(context)? {
                return Ok(());
            }
        }
    }

    fn advance_until_idle(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        loop {
            let mut progress = self.take_orders(context)?;
            progress |= self.take_finished(context)?;
            progress |= self.receive(context)?;
            self.send(context)?;
            if self.blocked_since.is_none() {
                if self.closing_all {
                    return Err(End::Ordered("target cold reset"));
                }
                if self.connection.is_closing() {
                    return Err(End::LoggedOut);
                }
            }
            if !progress && !self.poll_timer(context)? {
                return Ok(());
            }
        }
    }

    fn take_orders(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while let Poll::Ready(Some(order)) = self.seat.orders.poll_recv(context) {
            progress = true;
            match order {
                Order::Close(why) => return Err(End::Ordered(why)),
                Order::AskForLogout(seconds) => {
                    self.connection.ask_for_logout(&self.session, seconds);
                }
                Order::Clear { lun, done } => {
                    self.connection.abort_tasks(&mut self.session, lun);
                    self.take_events(context)?;
                    drop(done);
                }
            }
        }
        Ok(progress)
    }

    fn take_finished(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut progress = false;
        while let Some(finished) = self.executions.poll(context) {
            progress = true;
            match finished {
                Finished::Command(itt, completion) => self.complete(itt, completion),
                Finished::Management(itt, function) => {
                    let result = TaskFunctionResult::Complete;
                    self.connection.answer_management(&mut self.session, itt, result);
                    self.closing_all |= function == TaskFunction::TargetColdReset;
                }
            }
            if self.unsent >= self.surroundings.settings.batch_commands {
                self.send(context)?;
            }
        }
        Ok(progress)
    }

    /// Runs what was received, then reads once. False if there was nothing to read, or if the
    /// initiator must read first.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        if !self.run_frames(context)? {
            return Ok(false);
        }
        match poll_receive(&mut self.stream, &mut self.decoder, context) {
            Poll::Ready(Ok(Received::Bytes(_))) => self.run_frames(context),
            Poll::Ready(Ok(Received::Closed)) => Err(End::ClosedByPeer),
            Poll::Ready(Ok(Received::Nothing)) | Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Whether the commands that are not done hold this connection's share of memory. Those that
    /// end wake the driver.
    fn is_full(&self) -> bool {
        let held = self.executions.held_bytes();
        held > 0 && {
            let connections = self.surroundings.registry.connections.get().max(1);
            held >= self.surroundings.settings.held_bytes / connections
        }
    }

    /// Runs every PDU that is there. False if some are left since too much output waits, or too
    /// much data.
    fn run_frames(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let mut now = None;
        loop {
            if self.is_full() {
                return Ok(false);
            }
            if self.connection.output().len() > self.surroundings.settings.output_bytes {
                self.send(context)?;
                if self.blocked_since.is_some() {
                    return Ok(false);
                }
            }
            let frame = match self.decoder.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(true),
                Err(error) => return Err(self.connection.handle_codec_error(error).into()),
            };
            let now = *now.get_or_insert_with(Instant::now);
            self.last_input = now;
            self.connection.handle_frame(&mut self.session, frame, now)?;
            self.take_events(context)?;
            if self.unsent >= self.surroundings.settings.batch_commands {
                self.send(context)?;
            }
        }
    }

    fn take_events(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        while let Some(event) = self.connection.poll_event() {
            match event {
                Event::Command(command) => self.execute(command, context),
                Event::Admission(admission) => self.admit(admission),
                Event::Abort(itt) => self.executions.abort(itt, context),
                Event::Management(request) => self.manage(request, context),
                Event::SendTargets(which) => self.send_targets(&which)?,
            }
        }
        Ok(())
    }

    fn execute(&mut self, command: Command, context: &mut Context<'_>) {
        let Command { itt, lun, cdb, attribute, data_out, data_in_capacity } = command;
        let task = Task {
            nexus: self.nexus.clone(),
            lun,
            cdb,
            attribute: task_attribute(attribute),
            data_out: data_out.into_iter().collect(),
            data_in_capacity,
        };
        let Some(device) = self.device else { return };
        let unit = if device::is_meant(&task.cdb) { None } else { device.unit(lun) };
        let Some(unit) = unit else {
            let completion = device::execute(&task, &device.luns);
            self.complete(itt, completion);
            return;
        };
        let bytes = task.data_out.len();
        let mut execution: Execution<'_> = unit.execute(task);
        match execution.as_mut().poll(context) {
            Poll::Ready(completion) => self.complete(itt, completion),
            Poll::Pending => self.executions.hold(itt, bytes, execution),
        }
    }

    fn complete(&mut self, itt: iscsi::Itt, completion: Completion) {
        self.unsent += 1;
        self.connection.complete(&mut self.session, itt, outcome(completion));
    }

    fn admit(&mut self, admission: Admission) {
        let Admission { itt, lun, cdb, data_out_length } = admission;
        let unit = self.device.and_then(|device| device.unit(lun));
        match unit.and_then(|unit| unit.admit(&self.nexus, &cdb, data_out_length)) {
            Some(refusal) => self.complete(itt, refusal),
            None => self.connection.admit(&mut self.session, itt),
        }
    }

    /// Own tasks first, then those of other sessions, then the units are told, then the answer.
    fn manage(&mut self, request: ManagementRequest, context: &mut Context<'_>) {
        let ManagementRequest { itt, function, lun } = request;
        let Some(device) = self.device else { return };
        let is_for_target =
            matches!(function, TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset);
        if !is_for_target {
            if device.unit(lun).is_none() {
                let result = TaskFunctionResult::NoLun;
                self.connection.answer_management(&mut self.session, itt, result);
                return;
            }
            self.connection.abort_for(&mut self.session, &request);
            while let Some(event) = self.connection.poll_event() {
                if let Event::Abort(itt) = event {
                    self.executions.abort(itt, context);
                }
            }
        }
        let others = if function == TaskFunction::AbortTaskSet {
            Vec::new()
        } else {
            self.surroundings.registry.drivers(Some(&device.name), self.seat.number)
        };
        let nexus = self.nexus.clone();
        let cleared = (!is_for_target).then_some(lun);
        self.executions.hold_management(itt, function, async move {
            clear(&others, cleared).await;
            if let Some(function) = task_management(function) {
                match cleared {
                    Some(lun) => {
                        device.unit(lun).iter().for_each(|u| u.task_management(&nexus, function));
                    }
                    None => device.units().for_each(|u| u.task_management(&nexus, function)),
                }
            }
            if function == TaskFunction::TargetColdReset {
                // All sessions of the target end (RFC 7143, 11.5.1); ours after the answer.
                for other in &others {
                    let _ = other.send(Order::Close("target cold reset")).await;
                }
            }
        });
    }

    fn send_targets(&mut self, which: &SendTargets) -> Result<(), End> {
        let (local, peer) = (self.stream.local_addr()?, self.stream.peer_addr()?);
        let door = self.surroundings.door(local, peer.ip());
        let user = self.seat.user.as_deref();
        let mut targets = door.targets(self.session.initiator_name(), user);
        let wanted = match which {
            SendTargets::All => None,
            SendTargets::Named(name) => Some(name.as_str()),
            SendTargets::Own => Some(self.session.target_name().unwrap_or_default()),
        };
        targets.retain(|(name, _)| wanted.is_none_or(|wanted| wanted == name));
        let targets = targets.iter().map(|(name, addresses)| (name.as_str(), &addresses[..]));
        self.connection.answer_send_targets(&self.session, targets);
        Ok(())
    }

    fn send(&mut self, context: &mut Context<'_>) -> Result<(), End> {
        self.unsent = 0;
        let before = self.connection.output().len();
        if before == 0 {
            return Ok(());
        }
        match poll_send(&mut self.stream, self.connection.output_mut(), context)? {
            Sent::All => self.blocked_since = None,
            Sent::Blocked if self.connection.output().len() < before => {
                self.blocked_since = Some(Instant::now());
            }
            Sent::Blocked => {
                self.blocked_since.get_or_insert_with(Instant::now);
            }
        }
        Ok(())
    }

    /// True if a time had come and something was done.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let slow = self.surroundings.settings.slow_reader;
        let due = self.connection.poll_timeout(&self.session);
        let due = self.blocked_since.map_or(due, |since| due.min(since + slow));
        // The timer is not moved with every PDU, only when it has run out or is too late.
        let set = self.timer.deadline().into_std();
        if due < set {
            self.timer.as_mut().reset(due.into());
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        if self.blocked_since.is_some_and(|since| now >= since + slow) {
            return Err(End::SlowReader);
        }
        // An initiator whose socket is not read for now cannot be blamed for its silence.
        if self.is_full() {
            self.timer.as_mut().reset((now + FULL_FOR).into());
            return Ok(true);
        }
        self.connection.handle_timeout(&self.session, now)?;
        if now.duration_since(self.last_input) >= REST {
            self.decoder.rest();
        }
        let due = self.connection.poll_timeout(&self.session);
        let due = self.blocked_since.map_or(due, |since| due.min(since + slow));
        self.timer.as_mut().reset(due.into());
        Ok(true)
    }

    /// Asks for input past the runtime while the connection is active. True if some came; else
    /// the task gives way to others, and has arranged to come back if it is still active.
    fn busy_poll(&mut self, context: &mut Context<'_>) -> Result<bool, End> {
        let limit = self.surroundings.settings.busy_poll;
        let held_back = self.blocked_since.is_some() || self.is_full();
        if limit.is_zero() || held_back || self.last_input.elapsed() >= limit {
            return Ok(false);
        }
        for _ in 0..LOOKS {
            match receive_now(&self.stream, &mut self.decoder)? {
                Received::Bytes(_) => return Ok(true),
                Received::Closed => return Err(End::ClosedByPeer),
                Received::Nothing => std::hint::spin_loop(),
            }
        }
        context.waker().wake_by_ref();
        Ok(false)
    }

    fn publish(&self) {
        *self.seat.counters.lock() = self.connection.counters();
    }
}

/// Has other drivers abort what they have in progress at a unit, or at all; returns when they did.
async fn clear(drivers: &[mpsc::Sender<Order>], lun: Option<scsi::Lun>) {
    let (done, mut all_done) = mpsc::channel(1);
    for driver in drivers {
        // A driver that has gone has nothing in progress.
        let _ = driver.send(Order::Clear { lun, done: done.clone() }).await;
    }
    drop(done);
    while all_done.recv().await.is_some() {}
}

/// The name of an initiator port (RFC 7143, 3.4.3).
fn initiator_port(session: &Session) -> Arc<str> {
    let isid: String = session.isid().0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{},i,0x{isid}", session.initiator_name()).into()
}

fn outcome(completion: Completion) -> Outcome {
    Outcome {
        status: completion.status,
        sense: completion.sense,
        data_in: completion.data_in.into_parts(),
        data_out_length: completion.data_out_length,
    }
}

/// RFC 7143, 11.3.1; reserved values count as untagged.
fn task_attribute(attribute: u8) -> TaskAttribute {
    match attribute {
        1 => TaskAttribute::Simple,
        2 => TaskAttribute::Ordered,
        3 => TaskAttribute::HeadOfQueue,
        4 => TaskAttribute::Aca,
        _ => TaskAttribute::Untagged,
    }
}

fn task_management(function: TaskFunction) -> Option<TaskManagement> {
    Some(match function {
        TaskFunction::AbortTask => TaskManagement::AbortTask,
        TaskFunction::AbortTaskSet => TaskManagement::AbortTaskSet,
        TaskFunction::ClearAca => TaskManagement::ClearAca,
        TaskFunction::ClearTaskSet => TaskManagement::ClearTaskSet,
        TaskFunction::LogicalUnitReset => TaskManagement::LogicalUnitReset,
        TaskFunction::TargetWarmReset => TaskManagement::TargetWarmReset,
        TaskFunction::TargetColdReset => TaskManagement::TargetColdReset,
        TaskFunction::TaskReassign => return None,
    })
}
