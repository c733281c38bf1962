//! Records which StatSNs of a connection have arrived (RFC 7143, 4.2.2.2).

use std::collections::VecDeque;

use crate::Serial;

#[derive(Debug)]
pub(super) struct Statuses {
    /// ExpStatSN: all responses with a lower StatSN have arrived and are acknowledged.
    exp: Serial,
    /// The states of StatSN `exp` and of those after it. Empty unless a status was lost or is held.
    /// The first entry is never `Settled`.
    ahead: VecDeque<StatSnState>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum StatSnState {
    /// The target has sent the response with this StatSN, but the initiator has not received it.
    Missing,
    /// The status has arrived, but data of its task is missing, so it must not be acknowledged.
    Held,
    /// The status has arrived and may be acknowledged.
    Settled,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Arrival {
    /// The response has the StatSN that is expected next.
    Next,
    /// The response is new, and at least one response with a lower StatSN is missing.
    OutOfOrder,
    Repeated,
    /// The StatSN is further ahead than a correct target can be.
    TooFar,
}

/// The most unacknowledged statuses: a target has at most its command window of them, and the
/// widest window is 65,536.
const MOST_AHEAD: u32 = 1 << 16;

impl Statuses {
    pub(super) fn new(exp: Serial) -> Self {
        Self { exp, ahead: VecDeque::new() }
    }

    pub(super) fn exp_stat_sn(&self) -> Serial {
        self.exp
    }

    /// Records that a status has arrived. If `settled` is false, it must not be acknowledged yet.
    pub(super) fn arrive(&mut self, stat_sn: Serial, settled: bool) -> Arrival {
        if stat_sn == self.exp && self.ahead.is_empty() && settled {
            self.exp = stat_sn.next();
            return Arrival::Next;
        }
        if stat_sn.is_before(self.exp) {
            return Arrival::Repeated;
        }
        let place = stat_sn.distance_from(self.exp);
        if place >= MOST_AHEAD {
            return Arrival::TooFar;
        }
        let place = place as usize;
        let is_next = place == self.ahead.len();
        self.expect(stat_sn.next());
        let state = &mut self.ahead[place];
        if *state != StatSnState::Missing {
            return Arrival::Repeated;
        }
        *state = if settled { StatSnState::Settled } else { StatSnState::Held };
        self.advance();
        if is_next { Arrival::Next } else { Arrival::OutOfOrder }
    }

    /// Records that the data belonging to a held status is complete, so that the status may be
    /// acknowledged.
    pub(super) fn settle(&mut self, stat_sn: Serial) {
        if let Some(state) = self.ahead.get_mut(stat_sn.distance_from(self.exp) as usize) {
            *state = StatSnState::Settled;
        }
        self.advance();
    }

    /// Records that the target has sent all statuses before `next`. Returns true if one of them is
    /// now known to be lost.
    pub(super) fn expect(&mut self, next: Serial) -> bool {
        if next.is_before(self.exp) || next.distance_from(self.exp) > MOST_AHEAD {
            return false;
        }
        let known = self.ahead.len();
        let sent = next.distance_from(self.exp) as usize;
        if sent > known {
            self.ahead.resize(sent, StatSnState::Missing);
        }
        sent > known
    }

    /// Returns the first gap: the StatSN of the first missing status and the number of missing
    /// ones.
    pub(super) fn missing(&self) -> Option<(Serial, u32)> {
        let is_missing = |state: &StatSnState| *state == StatSnState::Missing;
        let first = self.ahead.iter().position(is_missing)?;
        let count = self.ahead.iter().skip(first).take_while(|state| is_missing(state)).count();
        Some((self.exp.add(first as u32), count as u32))
    }

    fn advance(&mut self) {
        while self.ahead.front() == Some(&StatSnState::Settled) {
            self.ahead.pop_front();
            self.exp = self.exp.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_in_order_are_not_kept() {
        let mut statuses = Statuses::new(Serial(u32::MAX));
        assert_eq!(statuses.arrive(Serial(u32::MAX), true), Arrival::Next);
        assert_eq!(statuses.arrive(Serial(0), true), Arrival::Next);
        assert_eq!(statuses.exp_stat_sn(), Serial(1));
        assert_eq!(statuses.missing(), None);
    }

    #[test]
    fn lost_statuses_are_not_acknowledged() {
        let mut statuses = Statuses::new(Serial(5));
        assert_eq!(statuses.arrive(Serial(7), true), Arrival::OutOfOrder);
        assert_eq!((statuses.exp_stat_sn(), statuses.missing()), (Serial(5), Some((Serial(5), 2))));
        assert_eq!(statuses.arrive(Serial(7), true), Arrival::Repeated);
        assert_eq!(statuses.arrive(Serial(6), true), Arrival::OutOfOrder);
        assert_eq!(statuses.missing(), Some((Serial(5), 1)));
        assert_eq!(statuses.arrive(Serial(5), true), Arrival::OutOfOrder);
        assert_eq!((statuses.exp_stat_sn(), statuses.missing()), (Serial(8), None));
        assert_eq!(statuses.arrive(Serial(4), true), Arrival::Repeated);
    }

    #[test]
    fn a_status_is_held_until_its_data_is_there() {
        let mut statuses = Statuses::new(Serial(5));
        assert_eq!(statuses.arrive(Serial(5), false), Arrival::Next);
        assert_eq!(statuses.arrive(Serial(6), true), Arrival::Next);
        assert_eq!((statuses.exp_stat_sn(), statuses.missing()), (Serial(5), None));
        statuses.settle(Serial(5));
        assert_eq!(statuses.exp_stat_sn(), Serial(7));
    }

    #[test]
    fn a_higher_next_number_reveals_lost_statuses() {
        let mut statuses = Statuses::new(Serial(5));
        assert!(!statuses.expect(Serial(5)));
        assert!(statuses.expect(Serial(7)));
        assert!(!statuses.expect(Serial(7)));
        assert_eq!(statuses.missing(), Some((Serial(5), 2)));
        assert!(!statuses.expect(Serial(4)));
        assert_eq!(statuses.arrive(Serial(5).add(MOST_AHEAD), true), Arrival::TooFar);
    }
}
