//! Recovery of a failed connection and of its tasks (RFC 7143, 7.1.4.3, 7.2).
//!
//! ```text
//!           Waiting ──── logout on another connection ───▶ LoggingOut ──▶ Resting ──▶ its tasks
//! lost ──▶ (Time2Wait)                                                       ▲
//!             └───────── login with its CID (no other connection left) ──────┘
//! ```
//!
//! No command may be executed twice. Until the target has answered the logout (or the login in its
//! place), it may still execute a task, so no command is sent again before. Afterwards:
//! - A command that the target has not received (CmdSN from ExpCmdSN on) is sent again with its
//!   CmdSN, which fills the gap in the command order.
//! - At error recovery level 2, any other task is reassigned to another connection, on which it
//!   continues.
//! - At levels 0 and 1, and if the target does not have the task any more, the target has
//!   terminated it. Such a task is returned to the application ([`InitiatorEvent::Returned`]),
//!   which submits it again.

use std::time::{Duration, Instant};

use super::{
    CommandRequest, InitiatorEvent, InitiatorSessionError,
    connection::{InitiatorConnection, Logout, LogoutScope},
    lost::{ConnectionRecoveryStep, FailedConnection},
    session::InitiatorSession,
};
use crate::{
    Cid,
    pdu::{LogoutReason, LogoutResponse, LogoutResult},
};

/// The most TASK REASSIGN requests in flight on each connection. They are immediate requests: a target need accept only
/// one at a time, and rejects more; our target accepts 16.
const REASSIGNS: usize = 8;

/// The most logouts for one failed connection, each with the time-out of a task management
/// function.
const MOST_LOGOUTS: u32 = 3;

/// The longest Time2Wait that is obeyed. A target may ask for more time than an application has
/// (Time2Wait has 16 bits, up to 18 hours); above this, the session ends at once. Time2Retain is
/// limited to it as well. Twice the time that Linux gives a command.
pub const MOST_PATIENCE: Duration = Duration::from_secs(60);

impl InitiatorSession {
    /// Handles the end of a connection: keeps its tasks for the recovery, or ends the session if no
    /// recovery is possible.
    pub(super) fn lose(&mut self, cid: Cid, error: InitiatorSessionError, now: Instant) {
        let is_leaving = |connection: &InitiatorConnection| {
            matches!(
                connection.logout,
                Logout::Sent { scope: LogoutScope::Session, .. } | Logout::Ending
            )
        };
        let leaving = self.connections.iter().any(|one| one.cid == cid && is_leaving(one));
        self.connections.retain(|connection| connection.cid != cid);
        self.mark_lost(cid, now);
        let reassigns = self.commands.reassigns();
        let parameters = &self.commands.parameters;
        let seconds = error.time2wait().unwrap_or(parameters.default_time2wait);
        let wait = Duration::from_secs(seconds.into());
        let retain = Duration::from_secs(parameters.default_time2retain.into());
        if leaving || error.ends_session() || wait > MOST_PATIENCE {
            self.end(error);
            return;
        }
        for lost in &mut self.lost {
            if matches!(lost.step, ConnectionRecoveryStep::LoggingOut { on, .. } if on == cid) {
                lost.step = ConnectionRecoveryStep::Waiting(now);
            }
        }
        self.lost.push_back(FailedConnection {
            cid,
            step: ConnectionRecoveryStep::Waiting(now + wait),
            attempts: 0,
        });
        if self.connections.is_empty() {
            if !reassigns {
                self.end(error);
                return;
            }
            self.kept_until = Some(now + wait + retain.min(MOST_PATIENCE));
        }
        self.recover(now);
    }

    /// Ends the session because of `error`, unless it has ended already.
    pub(super) fn end(&mut self, error: InitiatorSessionError) {
        self.over.get_or_insert(error);
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.is_some()
    }

    #[must_use]
    pub fn error(&self) -> Option<&InitiatorSessionError> {
        self.over.as_ref()
    }

    /// Returns when a login may replace a lost connection. `None` while there is a connection, and
    /// after the end of the session.
    #[must_use]
    pub fn reinstate_at(&self) -> Option<Instant> {
        if !self.connections.is_empty() || self.is_over() {
            return None;
        }
        self.lost.iter().find_map(|lost| match lost.step {
            ConnectionRecoveryStep::Waiting(until) => Some(until),
            _ => None,
        })
    }

    /// Marks all tasks of connection `cid` as being without a connection.
    pub(super) fn mark_lost(&mut self, cid: Cid, now: Instant) {
        for (_, task) in self.commands.tasks.iter_mut() {
            if task.allegiance == cid {
                task.lost = true;
                // Let the time-out expire at once: the abort is sent again when the task has another connection.
                if task.abort.take().is_some() {
                    task.deadline = now;
                }
            }
        }
        self.commands.recompute_deadline();
    }

    /// Records that a login has replaced a connection.
    pub(super) fn note_reinstated(&mut self, cid: Cid, now: Instant) {
        if let Some(lost) = self.lost.iter_mut().find(|lost| lost.cid == cid) {
            lost.step = ConnectionRecoveryStep::Resting(now);
        }
    }

    pub(super) fn recovery_timeout(&self) -> Option<Instant> {
        let carried = self.connections.iter().any(InitiatorConnection::is_open);
        let due = self.lost.iter().filter_map(|lost| match lost.step {
            ConnectionRecoveryStep::Waiting(until) | ConnectionRecoveryStep::Resting(until) => {
                carried.then_some(until)
            }
            ConnectionRecoveryStep::LoggingOut { deadline, .. } => Some(deadline),
        });
        due.min()
    }

    /// Takes the next recovery step that is due, for each failed connection.
    pub(super) fn recover(&mut self, now: Instant) {
        if self.is_over() {
            return;
        }
        for at in 0..self.lost.len() {
            match self.lost[at].step {
                ConnectionRecoveryStep::Waiting(until) if until <= now => {
                    self.log_out_lost(at, now)
                }
                ConnectionRecoveryStep::LoggingOut { deadline, .. } if deadline <= now => {
                    self.end(InitiatorSessionError::Unanswered(
                        "the logout of a connection that failed",
                    ));
                }
                _ => {}
            }
        }
        while let Some(at) = self.lost.iter().position(
            |lost| matches!(lost.step, ConnectionRecoveryStep::Resting(until) if until <= now),
        ) {
            let cid = self.lost.remove(at).expect("just found").cid;
            if self.commands.reassigns() {
                let known = self.commands.split_lost(cid);
                self.commands.orphans.extend(known);
            } else {
                self.give_back(cid);
            }
        }
        self.reassign(now);
    }

    /// Logs out a failed connection, with a request on an open connection.
    fn log_out_lost(&mut self, at: usize, now: Instant) {
        let reason = if self.commands.reassigns() {
            LogoutReason::RemoveConnectionForRecovery
        } else {
            LogoutReason::CloseConnection
        };
        let open = self.connections.iter_mut().filter(|connection| connection.is_open());
        let Some(carrier) = open.min_by_key(|connection| connection.load) else { return };
        let lost = &mut self.lost[at];
        lost.attempts += 1;
        if lost.attempts > MOST_LOGOUTS {
            self.end(InitiatorSessionError::Unanswered("the logout of a connection that failed"));
            return;
        }
        let itt = carrier.send_logout(&mut self.commands, reason, lost.cid);
        carrier.foreign_logouts.push(itt);
        let deadline = now + self.timing.abort_time_out;
        lost.step = ConnectionRecoveryStep::LoggingOut { on: carrier.cid, itt, deadline };
    }

    /// Handles the answer to the logout of a failed connection.
    pub(super) fn handle_foreign_logout(&mut self, pdu: &LogoutResponse, now: Instant) {
        let is_meant = |lost: &FailedConnection| matches!(lost.step, ConnectionRecoveryStep::LoggingOut { itt, .. } if itt == pdu.itt);
        let Some(at) = self.lost.iter().position(is_meant) else { return };
        let reassigns = self.commands.reassigns();
        let patience = Duration::from_secs(pdu.time2wait.into());
        let wait = if reassigns { patience } else { Duration::ZERO };
        match pdu.result {
            LogoutResult::Closed if wait <= MOST_PATIENCE => {
                self.lost[at].step = ConnectionRecoveryStep::Resting(now + wait);
            }
            // The connection was logged out before. The target will say which tasks it still has.
            LogoutResult::CidNotFound => self.lost[at].step = ConnectionRecoveryStep::Resting(now),
            LogoutResult::CleanupFailed if patience <= MOST_PATIENCE => {
                self.lost[at].step = ConnectionRecoveryStep::Waiting(now + patience);
            }
            _ => self
                .end(InitiatorSessionError::Unanswered("the logout of a connection that failed")),
        }
    }

    /// Returns to the application the tasks of a connection that the target has received and
    /// terminated.
    pub(super) fn give_back(&mut self, cid: Cid) {
        let known = self.commands.split_lost(cid);
        let tasks = known.into_iter().filter_map(|itt| self.commands.tasks.remove(itt));
        let requests: Vec<CommandRequest> = tasks.map(|task| task.request).collect();
        if !requests.is_empty() {
            self.commands.events.push_back(InitiatorEvent::Returned(requests));
        }
    }

    /// Sends TASK REASSIGN for tasks whose connection was logged out, to the open connections with
    /// the least load.
    fn reassign(&mut self, now: Instant) {
        while let Some(&itt) = self.commands.orphans.front() {
            let open = self.connections.iter_mut();
            let open = open.filter(|c| c.is_open() && c.reassigning() < REASSIGNS);
            let Some(carrier) = open.min_by_key(|connection| connection.load) else { return };
            self.commands.orphans.pop_front();
            if !self.commands.tasks.get(itt).is_some_and(|task| task.lost) {
                continue;
            }
            carrier.send_reassign(&mut self.commands, itt, now);
        }
    }
}
