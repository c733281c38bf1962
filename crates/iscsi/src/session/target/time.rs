//! Time-outs of silent initiators, of lost data, and of tasks that no connection takes over (RFC
//! 7143, 7.1.4, 7.5).

use std::time::Instant;

use smallvec::SmallVec;

use crate::{Cid, Itt};

use super::{
    connection::TargetSessionError,
    session::Session,
    task::IncomingWrite,
    waiting::{Charge, Stall},
};

impl Session {
    /// Returns when to call `handle_timeout`; every frame may change it. `None` if no timer is
    /// running.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let open = self.connections.iter().filter(|connection| !connection.closing);
        let mut next = open.map(|connection| connection.poll_timeout(&self.settings)).min();
        let mut note = |time: Instant| next = Some(next.map_or(time, |next| next.min(time)));
        self.writes.sequence_check.into_iter().for_each(&mut note);
        self.writes.stall_check.into_iter().for_each(&mut note);
        self.connections.iter().filter_map(|c| self.room_due(c)).for_each(&mut note);
        self.lost.iter().for_each(|lost| note(lost.deadline));
        self.functions.postponed.iter().for_each(|postponed| note(postponed.due()));
        self.functions.fenced.iter().for_each(|fenced| note(fenced.until));
        next
    }

    /// Records that output of this connection is blocked. R2Ts may then not have reached the
    /// initiator, so its silence does not count as a failure. Call this before `handle_timeout`,
    /// and once more when the output is no longer blocked.
    pub fn excuse_silence(&mut self, cid: Cid, now: Instant) {
        self.excuse(cid, now, IncomingWrite::is_asked_for);
    }

    /// Records that the driver does not read this connection now. Data that the session waits for
    /// may then be in the socket already, so the initiator's silence does not count as a failure.
    /// Call this at the same times as [`Self::excuse_silence`].
    pub fn excuse_unread(&mut self, cid: Cid, now: Instant) {
        let most = self.settings.excused_time;
        self.excuse(cid, now, |_| true);
        if let Some((_, stall)) = &mut self.order.hole {
            stall.excuse(now, most);
        }
    }

    fn excuse(&mut self, cid: Cid, now: Instant, is_excused: impl Fn(&IncomingWrite) -> bool) {
        let Some(at) = self.index(cid) else { return };
        let connection = &mut self.connections[at];
        connection.excuse_silence(now);
        let instance = connection.instance;
        for (itt, transfer) in &mut self.writes.incoming {
            if self.tasks.by_tag.get(itt).is_some_and(|task| task.allegiance == instance) {
                transfer.progress = now;
                if is_excused(transfer) {
                    transfer.stall.excuse(now, self.settings.excused_time);
                }
            }
        }
    }

    /// Processes time-outs. Returns the connections to close, and the reasons.
    pub fn handle_timeout(&mut self, now: Instant) -> SmallVec<[(Cid, TargetSessionError); 1]> {
        self.now = now;
        let mut failed = SmallVec::new();
        for at in 0..self.connections.len() {
            let connection = &self.connections[at];
            if connection.closing || now < connection.poll_timeout(&self.settings) {
                continue;
            }
            if connection.liveness.ping.is_some() {
                failed.push((connection.cid(), TargetSessionError::Silent));
                continue;
            }
            let (window, ttt) = (self.window_numbers(), self.new_ttt());
            self.connections[at].liveness.ping = Some(now);
            self.connections[at].send_nop(window, ttt);
        }
        while let Some(lost) = self.lost.iter().find(|lost| lost.deadline <= now) {
            self.terminate(lost.instance);
        }
        if self.writes.sequence_check.is_some_and(|check| check <= now) {
            self.check_sequences();
        }
        if !self.writes.incoming.is_empty() {
            self.refuse_waiting();
        }
        if self.writes.stall_check.is_some_and(|check| check <= now) {
            failed.extend(self.check_progress());
        }
        if !self.functions.postponed.is_empty() {
            self.check_postponed();
        }
        if !self.functions.fenced.is_empty() {
            self.check_fences();
        }
        failed
    }

    /// Checks that waiting writes make progress. If they do not, the session must end: returns one
    /// of its connections and the error.
    fn check_progress(&mut self) -> Option<(Cid, TargetSessionError)> {
        let holds_early = self.order.window.held().any(|early| early.charge.bytes() > 0);
        let hole = self.order.hole.filter(|_| holds_early).map(|(_, stall)| stall.since);
        let open = self
            .writes
            .incoming
            .values()
            .filter(|transfer| transfer.charge.bytes() > 0 && !transfer.gather.is_quiet());
        let oldest = open.map(|transfer| transfer.stall.since).chain(hole).min();
        let stalled = oldest.map(|since| since + self.settings.stalled_after);
        self.writes.stall_check = stalled.into_iter().chain(self.data_due()).min();
        if self.writes.stall_check.is_none_or(|check| self.now < check) {
            let is_waiting = !self.writes.incoming.is_empty() || self.order.hole.is_some();
            if self.writes.stall_check.is_none() && is_waiting {
                self.watch_progress();
            }
            return None;
        }
        if self.connections.is_empty() {
            self.writes.stall_check = None;
            while let Some(lost) = self.lost.first() {
                self.terminate(lost.instance);
            }
            return None;
        }
        let held = self.writes.memory.held();
        let is_stalled = stalled.is_some_and(|due| due <= self.now);
        let error = if is_stalled {
            TargetSessionError::Stalled(held)
        } else {
            TargetSessionError::Slow(held)
        };
        Some((self.connections[0].cid(), error))
    }

    /// Returns when the data of the oldest write will have taken too long to arrive while other
    /// sessions lack memory. Writes that could not even request their data end earlier: see
    /// `refuse_waiting`.
    fn data_due(&self) -> Option<Instant> {
        let contended = self.writes.contended_since?;
        let held = |begun: Instant, charge: &Charge| (charge.bytes() > 0).then_some(begun);
        let open = self
            .writes
            .incoming
            .values()
            .filter_map(|transfer| held(transfer.begun, &transfer.charge));
        let early = self.order.window.held().filter_map(|early| held(early.begun, &early.charge));
        let oldest = open.chain(early).min()?;
        Some(oldest.max(contended) + self.settings.data_time)
    }

    /// Requests the data again of writes for which none has arrived for `Settings::sequence_time`,
    /// or makes them fail.
    fn check_sequences(&mut self) {
        let time = self.settings.sequence_time;
        let due = |progress: Instant| progress + time;
        let late: Vec<Itt> = self
            .writes
            .incoming
            .iter()
            .filter(|(_, transfer)| due(transfer.progress) <= self.now)
            .map(|(itt, _)| *itt)
            .collect();
        for itt in late {
            let Some(transfer) = self.writes.incoming.get_mut(&itt) else { continue };
            // Restart both timers: data that is requested again gets the full time. The number of
            // such requests per write is limited.
            (transfer.progress, transfer.stall) = (self.now, Stall::new(self.now));
            let allegiance = self.tasks.by_tag.get(&itt).map(|task| task.allegiance);
            let Some(at) = allegiance.and_then(|instance| self.position(instance)) else {
                continue; // no data can arrive while its connection is lost
            };
            let repeated =
                self.writes.incoming.get_mut(&itt).and_then(|t| t.gather.handle_silence());
            match repeated {
                Some(burst) => self.ask_for(at, itt, &[burst]),
                None => self.advance_transfer(itt),
            }
        }
        self.writes.sequence_check =
            self.writes.incoming.values().map(|transfer| due(transfer.progress)).min();
    }
}
