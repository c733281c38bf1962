//! The command window at the initiator: CmdSN, ExpCmdSN, MaxCmdSN (RFC 7143, 4.2.2.1).

use crate::{Serial, pdu::Numbers};

/// The range of CmdSNs with which the initiator may send commands at present.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorCommandWindow {
    /// The CmdSN that the next command gets.
    cmd_sn: Serial,
    /// ExpCmdSN: the target has received all commands with a lower CmdSN.
    exp_cmd_sn: Serial,
    /// The last CmdSN that the target accepts.
    max_cmd_sn: Serial,
}

impl InitiatorCommandWindow {
    /// Makes the window after a login. If `max_cmd_sn` is invalid, the window permits one command,
    /// since the answer to it may have valid numbers.
    #[must_use]
    pub fn new(cmd_sn: Serial, max_cmd_sn: Serial) -> Self {
        let max_cmd_sn = if max_cmd_sn.is_before(cmd_sn) { cmd_sn } else { max_cmd_sn };
        Self { cmd_sn, exp_cmd_sn: cmd_sn, max_cmd_sn }
    }

    /// Returns the CmdSN of the next command. Immediate commands carry this number without consuming it.
    #[must_use]
    pub fn cmd_sn(&self) -> Serial {
        self.cmd_sn
    }

    /// Returns ExpCmdSN as the target last reported it: the target has received all commands before
    /// this one.
    #[must_use]
    pub fn exp_cmd_sn(&self) -> Serial {
        self.exp_cmd_sn
    }

    /// Returns true if the window of CmdSNs allows another command.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.max_cmd_sn.is_before(self.cmd_sn)
    }

    /// Returns the number of commands that the window of CmdSNs allows at present.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.is_open() { self.max_cmd_sn.next().distance_from(self.cmd_sn) } else { 0 }
    }

    /// Returns the CmdSN for the next command, and advances the counter.
    pub fn take(&mut self) -> Serial {
        debug_assert!(self.is_open(), "a command outside the window");
        let taken = self.cmd_sn;
        self.cmd_sn = taken.next();
        taken
    }

    /// Processes ExpCmdSN and MaxCmdSN of a target PDU. As the standard requires, ignores both if
    /// they contradict each other, and ignores each of them if it is lower than before.
    pub fn update(&mut self, numbers: &Numbers) {
        let (exp, max) = (numbers.exp_cmd_sn, numbers.max_cmd_sn);
        if max.next().is_before(exp) {
            return;
        }
        // Ignore an ExpCmdSN above our CmdSN: the target cannot have received commands that were
        // not sent.
        if self.exp_cmd_sn.is_before(exp) && !self.cmd_sn.is_before(exp) {
            self.exp_cmd_sn = exp;
        }
        if self.max_cmd_sn.is_before(max) {
            self.max_cmd_sn = max;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(exp: u32, max: u32) -> Numbers {
        Numbers { stat_sn: Serial(0), exp_cmd_sn: Serial(exp), max_cmd_sn: Serial(max) }
    }

    #[test]
    fn the_window_opens_and_closes_across_the_wrap() {
        let mut window = InitiatorCommandWindow::new(Serial(u32::MAX), Serial(0));
        assert_eq!(window.room(), 2);
        assert_eq!(window.take(), Serial(u32::MAX));
        assert_eq!(window.take(), Serial(0));
        assert!(!window.is_open());
        window.update(&numbers(1, 3));
        assert_eq!(window.room(), 3);
    }

    #[test]
    fn the_window_never_shrinks() {
        let mut window = InitiatorCommandWindow::new(Serial(10), Serial(20));
        window.update(&numbers(10, 12));
        assert_eq!(window.room(), 11);
    }

    #[test]
    fn numbers_that_contradict_each_other_are_ignored() {
        let mut window = InitiatorCommandWindow::new(Serial(10), Serial(10));
        window.update(&numbers(100, 98));
        assert_eq!(window.room(), 1);
        // The empty window is valid: MaxCmdSN = ExpCmdSN - 1.
        window.take();
        window.update(&numbers(11, 10));
        assert!(!window.is_open());
    }
}
