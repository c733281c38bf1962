//! The memory of a session: memory that it borrows for waiting writes, and the check whether its commands use up its
//! share.

use std::task::Context;

use crate::{driver::TargetSessionDriver, execution::InFlightBytes, write_data_pool::Lease};

impl TargetSessionDriver<'_> {
    /// Borrows memory for the data of a PDU that may have to wait, and for the first burst of the next command,
    /// so that the command window stays open as long as there is room.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        if self.session.is_discovery() {
            return;
        }
        let held = self.session.waiting_bytes() + bytes;
        let next = self.session.parameters().first_burst_length as usize;
        let limit = self.kept_share() + self.lease.bytes();
        if held + next > limit {
            let _ =
                self.lease.grow(held + next - limit) || self.lease.grow(held.saturating_sub(limit));
        }
        self.session.limit_waiting(self.kept_share() + self.lease.bytes());
    }

    /// Borrows memory for a write whose data the target has not requested yet. Returns true if memory was borrowed, so
    /// that the data can be requested.
    pub(crate) fn find_room(&mut self, context: &Context<'_>) -> bool {
        let lacking = self.session.lacking_bytes();
        if lacking == 0 {
            return false;
        }
        let is_only = !self.session.has_solicited();
        let grow = |lease: &mut Lease| {
            if is_only { lease.grow_for_one(lacking) } else { lease.grow(lacking) }
        };
        let mut found = grow(&mut self.lease);
        if !found {
            self.lease.wait(context.waker());
            // Try again after registering: a session that gave memory back just before did not wake this driver.
            found = grow(&mut self.lease);
        }
        if found {
            self.session.limit_waiting(self.kept_share() + self.lease.bytes());
        }
        found
    }

    /// Returns memory to the pool that is not needed, and releases the idle buffers of a session that has
    /// used up its share.
    pub(crate) fn give_room_back(&mut self) {
        if self.session.is_over_share() {
            self.lines.iter_mut().for_each(|line| line.decoder.rest());
        }
        let held = self.session.waiting_bytes();
        let next = self.session.parameters().first_burst_length as usize;
        let needed = if held == 0 { 0 } else { (held + next).saturating_sub(self.kept_share()) };
        if self.lease.bytes() > 0 && (needed == 0 || self.lease.bytes() > needed + SPARE_LEASE) {
            self.lease.shrink_to(needed);
            self.session.limit_waiting(self.kept_share() + needed);
        }
    }

    fn kept_share(&self) -> usize {
        self.server.settings.kept_share() * self.lines.len().max(1)
    }

    /// Returns true if the commands in progress hold all of this session's share of memory. The end of a command wakes
    /// the driver.
    pub(crate) fn is_full(&self) -> bool {
        let InFlightBytes { data_out, data_in } = self.executions.held();
        let data_out = data_out + self.deferred.bytes();
        let settings = &self.server.settings;
        let is_over = |held: usize, all: usize| {
            let share = || self.server.share(all).saturating_mul(self.lines.len().max(1));
            held > 0 && held >= share()
        };
        is_over(data_out, settings.held_bytes) || is_over(data_in, settings.returned_bytes)
    }
}

/// Memory that a session keeps although it does not need it now: four first bursts, so that not every write
/// has to borrow from the pool.
const SPARE_LEASE: usize = 1 << 20;
