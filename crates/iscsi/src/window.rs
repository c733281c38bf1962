//! The command window at the target: ExpCmdSN, MaxCmdSN, and commands that arrived too early (RFC
//! 7143, 4.2.2.1).

use std::collections::VecDeque;

use crate::Serial;

/// The command window of one session, with the commands that arrived ahead of their turn.
///
/// Invariants: `exp_cmd_sn <= max_cmd_sn + 1`; MaxCmdSN never decreases; `held` is sorted, has no
/// duplicates, and its numbers are after `exp_cmd_sn` and within the window, so that `held` is
/// never longer than `limit`.
#[derive(Debug)]
pub(crate) struct TargetCommandWindow<T> {
    exp_cmd_sn: Serial,
    max_cmd_sn: Serial,
    /// The most commands that may be in progress or in transit at a time.
    limit: u32,
    /// The commands that wait for their turn. `None` stands for a CmdSN that counts as received
    /// although there is no command to execute (RFC 7143, 11.6.1 b).
    held: VecDeque<(Serial, Option<T>)>,
}

/// The decision about a command that has just arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum CommandTurn {
    Now,
    /// Commands with a lower CmdSN are missing: keep this command with [`TargetCommandWindow::hold`].
    Later,
    /// The CmdSN is outside the command window or a repetition: ignore the command without a response.
    Never,
}

impl<T> TargetCommandWindow<T> {
    /// Makes a window of `limit` commands (at least 1) that starts at `cmd_sn`.
    pub(crate) fn new(cmd_sn: Serial, limit: u32) -> Self {
        let max_cmd_sn = cmd_sn.add(limit - 1);
        Self { exp_cmd_sn: cmd_sn, max_cmd_sn, limit, held: VecDeque::new() }
    }

    /// Returns the CmdSN of the next command in order: all earlier ones count as received.
    pub(crate) fn exp_cmd_sn(&self) -> Serial {
        self.exp_cmd_sn
    }

    /// Returns the CmdSN of the last command in the window.
    pub(crate) fn max_cmd_sn(&self) -> Serial {
        self.max_cmd_sn
    }

    /// Decides what to do with a non-immediate command that has arrived. If the result is
    /// [`CommandTurn::Now`], its CmdSN now counts as received.
    pub(crate) fn arrive(&mut self, cmd_sn: Serial) -> CommandTurn {
        if cmd_sn == self.exp_cmd_sn && !self.max_cmd_sn.is_before(cmd_sn) {
            self.exp_cmd_sn = cmd_sn.next();
            CommandTurn::Now
        } else if !self.contains(cmd_sn) || self.position(cmd_sn).is_ok() {
            CommandTurn::Never
        } else {
            CommandTurn::Later
        }
    }

    /// Keeps a command for which [`Self::arrive`] returned [`CommandTurn::Later`].
    pub(crate) fn hold(&mut self, cmd_sn: Serial, item: T) {
        self.insert(cmd_sn, Some(item));
    }

    /// Removes and returns the next held command if all commands before it have been processed.
    pub(crate) fn poll(&mut self) -> Option<T> {
        while self.held.front().is_some_and(|(cmd_sn, _)| *cmd_sn == self.exp_cmd_sn) {
            let (cmd_sn, item) = self.held.pop_front()?;
            self.exp_cmd_sn = cmd_sn.next();
            if item.is_some() {
                return item;
            }
        }
        None
    }

    /// Counts `cmd_sn` as received although its command never arrived. Returns false if `cmd_sn` is
    /// outside the window or was received.
    pub(crate) fn void(&mut self, cmd_sn: Serial) -> bool {
        if !self.contains(cmd_sn) || self.position(cmd_sn).is_ok() {
            return false;
        }
        self.insert(cmd_sn, None);
        self.pass_voided();
        true
    }

    /// Takes the first held command for which `is_meant` returns true; its number counts as
    /// received.
    pub(crate) fn take_held(&mut self, mut is_meant: impl FnMut(&T) -> bool) -> Option<T> {
        self.held.iter_mut().find(|(_, item)| item.as_ref().is_some_and(&mut is_meant))?.1.take()
    }

    /// Advances ExpCmdSN over numbers that were voided, so that the response to the request that
    /// voided them reports the new ExpCmdSN. [`Self::poll`] then returns the held commands after
    /// them.
    fn pass_voided(&mut self) {
        while self
            .held
            .pop_front_if(|(sn, item)| *sn == self.exp_cmd_sn && item.is_none())
            .is_some()
        {
            self.exp_cmd_sn = self.exp_cmd_sn.next();
        }
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = &T> {
        self.held.iter().filter_map(|(_, item)| item.as_ref())
    }

    /// Returns the first held command for which `is_meant` returns true.
    pub(crate) fn find_held(&mut self, mut is_meant: impl FnMut(&T) -> bool) -> Option<&mut T> {
        self.held.iter_mut().filter_map(|(_, item)| item.as_mut()).find(|item| is_meant(item))
    }

    /// Discards the held commands for which `is_meant` returns true. Their numbers count as missing
    /// again until the initiator retries them.
    pub(crate) fn discard_held(&mut self, mut is_meant: impl FnMut(&T) -> bool) {
        self.held.retain(|(_, item)| !item.as_ref().is_some_and(&mut is_meant));
    }

    /// Counts all commands before `cmd_sn` as received and discards the held ones among them. Does
    /// nothing unless `cmd_sn` is in the window or just after it.
    pub(crate) fn plug(&mut self, cmd_sn: Serial) {
        if self.contains(cmd_sn) || cmd_sn == self.max_cmd_sn.next() {
            self.held.retain(|(held, _)| !held.is_before(cmd_sn));
            self.exp_cmd_sn = cmd_sn;
        }
    }

    /// Raises MaxCmdSN as far as the limit permits while `in_progress` commands are in progress.
    pub(crate) fn open(&mut self, in_progress: u32) {
        let last = self.exp_cmd_sn.add(self.limit.saturating_sub(in_progress)).add(u32::MAX);
        if self.max_cmd_sn.is_before(last) {
            self.max_cmd_sn = last;
        }
    }

    fn contains(&self, cmd_sn: Serial) -> bool {
        !cmd_sn.is_before(self.exp_cmd_sn) && !self.max_cmd_sn.is_before(cmd_sn)
    }

    fn position(&self, cmd_sn: Serial) -> Result<usize, usize> {
        let distance = cmd_sn.distance_from(self.exp_cmd_sn);
        self.held.binary_search_by_key(&distance, |(held, _)| held.distance_from(self.exp_cmd_sn))
    }

    fn insert(&mut self, cmd_sn: Serial, item: Option<T>) {
        if let Err(at) = self.position(cmd_sn) {
            self.held.insert(at, (cmd_sn, item));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window() -> TargetCommandWindow<u32> {
        TargetCommandWindow::new(Serial(u32::MAX - 1), 8)
    }

    #[test]
    fn commands_out_of_order_wait_for_those_before_them() {
        let mut window = window();
        for early in [1, 0, u32::MAX] {
            assert_eq!(window.arrive(Serial(early)), CommandTurn::Later);
            window.hold(Serial(early), early);
            assert_eq!(window.poll(), None);
        }
        assert_eq!(window.arrive(Serial(u32::MAX - 1)), CommandTurn::Now);
        assert_eq!([window.poll(), window.poll(), window.poll()], [u32::MAX, 0, 1].map(Some));
        assert_eq!(window.poll(), None);
        assert_eq!(window.exp_cmd_sn(), Serial(2));
    }

    #[test]
    fn duplicates_and_commands_outside_of_the_window_are_ignored() {
        let mut window = window();
        assert_eq!(window.arrive(Serial(u32::MAX - 2)), CommandTurn::Never, "before the window");
        assert_eq!(window.arrive(Serial(6)), CommandTurn::Never, "after the window");
        assert_eq!(window.arrive(Serial(5)), CommandTurn::Later, "the last in the window");
        window.hold(Serial(5), 5);
        assert_eq!(window.arrive(Serial(5)), CommandTurn::Never, "held already");
    }

    #[test]
    fn commands_in_progress_close_the_window_and_their_end_opens_it() {
        let mut window = window();
        for n in 0..8 {
            assert_eq!(window.arrive(Serial(u32::MAX - 1).add(n)), CommandTurn::Now);
            window.open(n + 1);
        }
        assert_eq!(window.max_cmd_sn().next(), window.exp_cmd_sn());
        assert_eq!(window.arrive(window.exp_cmd_sn()), CommandTurn::Never);
        window.open(7);
        assert_eq!(window.max_cmd_sn(), window.exp_cmd_sn());
        window.open(8);
        assert_eq!(window.max_cmd_sn(), window.exp_cmd_sn(), "never goes back");
    }

    #[test]
    fn a_voided_number_does_not_block_later_commands() {
        let mut window = window();
        let first = window.exp_cmd_sn();
        window.hold(first.add(2), 2);
        assert!(window.void(first));
        assert!(window.void(first.add(1)));
        assert!(!window.void(first.add(1)));
        assert!(!window.void(first.add(8)));
        assert_eq!(window.poll(), Some(2));
    }

    #[test]
    fn discarded_commands_leave_a_gap_and_plugged_ones_do_not() {
        let mut window = window();
        let first = window.exp_cmd_sn();
        window.hold(first.add(1), 1);
        window.hold(first.add(2), 2);
        window.discard_held(|item| *item == 1);
        assert_eq!(window.arrive(first), CommandTurn::Now);
        assert_eq!(window.poll(), None);
        assert_eq!(window.arrive(first.add(1)), CommandTurn::Now, "a retry fills the gap");
        assert_eq!(window.poll(), Some(2));
        window.hold(first.add(4), 4);
        window.hold(first.add(5), 5);
        window.plug(first.add(9));
        assert_eq!(window.exp_cmd_sn(), first.add(3), "beyond the window");
        window.plug(first.add(5));
        assert_eq!(window.poll(), Some(5));
    }
}
