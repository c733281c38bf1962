//! The initiator's machine in full feature phase (RFC 7143, 3.2, 4.2): commands out, outcomes back.
//!
//! A [`Session`] holds what its connections share: the command window, the tasks by their tag, the
//! commands that wait. A [`Connection`] holds what belongs to one TCP connection: ExpStatSN, the
//! bursts being sent, the output. Logging in, sockets, reconnecting are the caller's.

mod window;
mod gather;
mod task;
mod burst;
mod connection;
mod control;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use scsi::{Lun, Sense};

pub use connection::{Connection, Counters};
pub use task::{Failure, Outcome, Request, Transfer};
pub use window::Window;

use crate::{
    Itt, codec,
    keys::Parameters,
    pdu::{ParseError, RejectReason},
};
use task::{Task, TaskTable};

/// What the connections of a session share.
#[derive(Debug)]
pub struct Session {
    parameters: Parameters,
    window: Window,
    tasks: TaskTable,
    /// Commands that wait for the window, oldest first.
    queue: VecDeque<Waiting>,
    /// Commands that may be queued and on their way together.
    depth: usize,
    submitted: u64,
    controls: u16,
    /// No deadline of a command is before this. May be too early, never too late.
    earliest_deadline: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    request: Request,
    order: u64,
    deadline: Instant,
}

impl Session {
    /// A session after its login, which takes `depth` commands at a time.
    #[must_use]
    pub fn new(parameters: Parameters, window: Window, depth: usize) -> Self {
        Self {
            parameters,
            window,
            tasks: TaskTable::default(),
            queue: VecDeque::new(),
            depth,
            submitted: 0,
            controls: 0,
            earliest_deadline: None,
        }
    }

    /// What was negotiated.
    #[must_use]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Commands submitted and not ended.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.queue.len() + self.tasks.len()
    }

    /// Commands that wait for the window to open.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Takes a command. It is sent by [`Connection::transmit`], as soon as the window is open, in
    /// the order of submission. Comes back if `depth` commands are unanswered.
    pub fn submit(&mut self, request: Request, now: Instant) -> Result<(), Request> {
        if self.unanswered() >= self.depth {
            return Err(request);
        }
        if let Transfer::Out(data) = &request.transfer {
            assert!(u32::try_from(data.len()).is_ok(), "EDTL has 32 bits");
        }
        let deadline = now + request.time_out;
        self.note_deadline(deadline);
        self.queue.push_back(Waiting { request, order: self.submitted, deadline });
        self.submitted += 1;
        Ok(())
    }

    /// Nobody waits for this command any more: its time ends now. The next
    /// [`Connection::handle_timeout`], due at once, aborts it.
    pub fn expire(&mut self, tag: u64, now: Instant) {
        let tasks = self.tasks.iter_mut().filter(|(_, task)| task.abort.is_none());
        let sent = tasks.map(|(_, task)| (task.request.tag, &mut task.deadline));
        let waiting = self.queue.iter_mut().map(|w| (w.request.tag, &mut w.deadline));
        let found = sent.chain(waiting).find(|(found, _)| *found == tag);
        if let Some((_, deadline)) = found
            && *deadline > now
        {
            *deadline = now;
            self.note_deadline(now);
        }
    }

    /// Ends the session: every command that was not answered, in the order of submission, to be
    /// submitted to the next one.
    pub fn take_unanswered(&mut self) -> Vec<Request> {
        let sent = self.tasks.drain().map(|task| (task.order, task.request));
        let waiting = self.queue.drain(..).map(|waiting| (waiting.order, waiting.request));
        let mut all: Vec<_> = sent.chain(waiting).collect();
        all.sort_by_key(|&(order, _)| order);
        all.into_iter().map(|(_, request)| request).collect()
    }

    /// A tag for what is not a command: ping, task management, text, logout. Its low half is one
    /// that the table of tasks never gives.
    fn control_itt(&mut self) -> Itt {
        self.controls = self.controls.wrapping_add(1);
        Itt(u32::from(self.controls) << 16 | 0xfffe)
    }

    /// The next command that may be sent.
    fn next_to_send(&mut self) -> Option<Waiting> {
        if !self.window.is_open() || self.tasks.is_full() {
            return None;
        }
        self.queue.pop_front()
    }

    fn note_deadline(&mut self, deadline: Instant) {
        let earliest = self.earliest_deadline.map_or(deadline, |earliest| earliest.min(deadline));
        self.earliest_deadline = Some(earliest);
    }

    /// Takes out the commands whose time ended before they could be sent.
    fn expire_waiting(&mut self, now: Instant) -> Vec<Request> {
        let (expired, waiting) =
            self.queue.drain(..).partition(|waiting: &Waiting| waiting.deadline <= now);
        self.queue = waiting;
        let expired: VecDeque<Waiting> = expired;
        expired.into_iter().map(|waiting| waiting.request).collect()
    }

    fn recompute_deadline(&mut self) {
        let tasks = self.tasks.iter_mut().map(|(_, task): (Itt, &mut Task)| task.deadline);
        self.earliest_deadline = tasks.chain(self.queue.iter().map(|w| w.deadline)).min();
    }
}

/// How long a connection waits for its target.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// After so long without hearing anything, ping.
    pub ping_after: Duration,
    /// After so long without hearing anything since the ping, the connection is dead.
    pub ping_time_out: Duration,
    /// How long the answer to an ABORT TASK may take.
    pub abort_time_out: Duration,
}

impl Default for Timing {
    /// A ping after 5 s, given up 5 s later (open-iscsi's values); 5 s for ABORT TASK.
    fn default() -> Self {
        let five = Duration::from_secs(5);
        Self { ping_after: five, ping_time_out: five, abort_time_out: five }
    }
}

/// What the application should know.
#[derive(Debug)]
pub enum Event {
    /// A command ended.
    Completed {
        /// The application's name for it.
        tag: u64,
        /// How.
        result: Result<Outcome, Failure>,
    },
    /// The answer to [`Connection::text`], all its parts joined.
    Text(Bytes),
    /// The target asked for a logout: no more commands are sent, and the logout follows when those
    /// on their way have ended or the target's time is up.
    LogoutRequested,
    /// The logout was answered: close the connection.
    LoggedOut {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// A SCSI asynchronous event.
    Sense(Lun, Option<Sense>),
}

/// The connection must be dropped. At error recovery level 0 this ends the session: what was not
/// answered comes out of [`Session::take_unanswered`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// Framing is lost.
    #[error(transparent)]
    Codec(#[from] codec::Error),
    /// A header means nothing.
    #[error("a PDU that cannot be read: {0}")]
    Parse(#[from] ParseError),
    /// Data arrived damaged.
    #[error("data digest error")]
    DataDigest,
    /// The target broke the protocol.
    #[error("the target sent {0}")]
    Protocol(&'static str),
    /// The target refused a PDU that it has to take.
    #[error("the target rejected a PDU: {0:?}")]
    Rejected(RejectReason),
    /// The target says that it drops the connection.
    #[error("the target dropped the connection")]
    Dropped {
        /// Seconds to wait before connecting again.
        time2wait: u16,
    },
    /// Nothing was heard since a ping.
    #[error("no answer to a ping")]
    Silent,
    /// ABORT TASK, text or logout was not answered in time, or could not be done.
    #[error("no answer to {0}")]
    Unanswered(&'static str),
}
